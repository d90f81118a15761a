// SPDX-License-Identifier: GPL-2.0-only
/*
 * Read, check, change and write an ELF64 x86-64 relocatable object. Structures
 * are copied in and out with memcpy(), because nothing in a file has to be
 * aligned. The checks follow what the module loader demands of a module.
 *
 * What an object does not say to be changed keeps its bytes and its place in
 * the file; what grows moves to the end, and the section headers follow it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "elf_file.h"

#define FILE_SIZE_MAX		(256UL << 20)	/* bytes; debug modules stay far below */
#define SIGNATURE_MARK		"~Module signature appended~\n"

void elf_die(const struct elf_file *elf, const char *format, ...)
{
	va_list args;

	fprintf(stderr, "klp-reloc: %s: ", elf->path);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(EXIT_FAILURE);
}

void *elf_alloc(size_t count, size_t size)
{
	void *memory = calloc(count ? count : 1, size);

	if (!memory) {
		fprintf(stderr, "klp-reloc: out of memory\n");
		exit(EXIT_FAILURE);
	}
	return memory;
}

/* Reading. */

static void read_raw(struct elf_file *elf)
{
	struct stat st;
	FILE *file = fopen(elf->path, "rb");

	if (!file || fstat(fileno(file), &st))
		elf_die(elf, "%s", strerror(errno));
	if (!S_ISREG(st.st_mode))
		elf_die(elf, "it is no regular file");
	if ((size_t)st.st_size > FILE_SIZE_MAX)
		elf_die(elf, "it has more than %lu bytes", FILE_SIZE_MAX);
	elf->size = st.st_size;
	elf->raw = elf_alloc(elf->size, 1);
	if (fread(elf->raw, 1, elf->size, file) != elf->size)
		elf_die(elf, "it can't be read in full");
	fclose(file);
}

static void check_header(struct elf_file *elf)
{
	const size_t mark = sizeof(SIGNATURE_MARK) - 1;
	Elf64_Ehdr *ehdr = &elf->ehdr;

	if (elf->size < sizeof(*ehdr) || memcmp(elf->raw, ELFMAG, SELFMAG))
		elf_die(elf, "it is no ELF file");
	memcpy(ehdr, elf->raw, sizeof(*ehdr));
	if (ehdr->e_ident[EI_CLASS] != ELFCLASS64 || ehdr->e_ident[EI_DATA] != ELFDATA2LSB ||
	    ehdr->e_machine != EM_X86_64 || ehdr->e_type != ET_REL)
		elf_die(elf, "it is no relocatable x86-64 object");
	if (!memcmp(elf->raw + elf->size - mark, SIGNATURE_MARK, mark))
		elf_die(elf, "it is signed already; sign it after this step");
	if (ehdr->e_shentsize != sizeof(Elf64_Shdr))
		elf_die(elf, "its section headers have %u bytes each, not %zu",
			ehdr->e_shentsize, sizeof(Elf64_Shdr));
	if (!ehdr->e_shnum || ehdr->e_shnum >= SHN_LORESERVE)
		elf_die(elf, "it has %u sections", ehdr->e_shnum);
	if (ehdr->e_shoff > elf->size ||
	    (elf->size - ehdr->e_shoff) / sizeof(Elf64_Shdr) < ehdr->e_shnum)
		elf_die(elf, "its section headers lie outside of the file");
	if (ehdr->e_shstrndx == SHN_UNDEF || ehdr->e_shstrndx >= ehdr->e_shnum)
		elf_die(elf, "it has no table of section names");
}

static void read_section(struct elf_file *elf, unsigned int index)
{
	struct elf_section *sec = &elf->sections[index];
	Elf64_Shdr *hdr = &sec->hdr;

	memcpy(hdr, elf->raw + elf->ehdr.e_shoff + (size_t)index * sizeof(*hdr), sizeof(*hdr));
	if (hdr->sh_type == SHT_NULL || hdr->sh_type == SHT_NOBITS)
		return;
	if (hdr->sh_offset > elf->size || hdr->sh_size > elf->size - hdr->sh_offset)
		elf_die(elf, "section %u lies outside of the file", index);
	sec->data = elf_alloc(hdr->sh_size, 1);
	memcpy(sec->data, elf->raw + hdr->sh_offset, hdr->sh_size);
	sec->room = hdr->sh_size;
}

static void check_strings(const struct elf_file *elf, unsigned int index)
{
	const struct elf_section *sec = &elf->sections[index];

	if (sec->hdr.sh_type != SHT_STRTAB || !sec->hdr.sh_size)
		elf_die(elf, "section %u is no string table", index);
	if (sec->data[0] || sec->data[sec->hdr.sh_size - 1])
		elf_die(elf, "the string table in section %u does not start and end with a NUL", index);
}

static void check_names(const struct elf_file *elf)
{
	const struct elf_section *names = &elf->sections[elf->ehdr.e_shstrndx];
	unsigned int i;

	check_strings(elf, elf->ehdr.e_shstrndx);
	for (i = 0; i < elf->shnum; i++)
		if (elf->sections[i].hdr.sh_name >= names->hdr.sh_size)
			elf_die(elf, "the name of section %u lies outside of its table", i);
}

static void check_symbols(struct elf_file *elf)
{
	const struct elf_section *sec;
	Elf64_Sym sym;
	unsigned int i;

	for (i = 1; i < elf->shnum; i++) {
		if (elf->sections[i].hdr.sh_type == SHT_SYMTAB_SHNDX)
			elf_die(elf, "it has extended section numbers, which modules never have");
		if (elf->sections[i].hdr.sh_type != SHT_SYMTAB)
			continue;
		if (elf->symtab)
			elf_die(elf, "it has two symbol tables");
		elf->symtab = i;
	}
	if (!elf->symtab)
		elf_die(elf, "it has no symbol table");
	sec = &elf->sections[elf->symtab];
	if (sec->hdr.sh_entsize != sizeof(sym) || sec->hdr.sh_size % sizeof(sym) ||
	    sec->hdr.sh_link >= elf->shnum)
		elf_die(elf, "its symbol table is malformed");
	elf->strtab = sec->hdr.sh_link;
	check_strings(elf, elf->strtab);
	for (i = 0; i < elf_symbol_count(elf); i++) {
		elf_symbol_get(elf, i, &sym);
		if (sym.st_name >= elf->sections[elf->strtab].hdr.sh_size)
			elf_die(elf, "the name of symbol %u lies outside of its table", i);
	}
}

static void check_relocs(const struct elf_file *elf, unsigned int index)
{
	const Elf64_Shdr *hdr = &elf->sections[index].hdr;
	size_t size = hdr->sh_type == SHT_RELA ? sizeof(Elf64_Rela) : sizeof(Elf64_Rel);
	Elf64_Rela rela;
	unsigned int i;

	if (hdr->sh_entsize != size || hdr->sh_size % size)
		elf_die(elf, "the relocations in section %u are malformed", index);
	if (hdr->sh_link != elf->symtab || !hdr->sh_info || hdr->sh_info >= elf->shnum)
		elf_die(elf, "the relocations in section %u belong to no section", index);
	for (i = 0; i < elf_rela_count(elf, index); i++) {
		elf_rela_get(elf, index, i, &rela);
		if (ELF64_R_SYM(rela.r_info) >= elf_symbol_count(elf))
			elf_die(elf, "relocation %u in section %u names no symbol", i, index);
	}
}

void elf_file_read(struct elf_file *elf, const char *path)
{
	size_t contents = 0;
	unsigned int i;

	memset(elf, 0, sizeof(*elf));
	elf->path = path;
	read_raw(elf);
	check_header(elf);
	elf->shnum = elf->ehdr.e_shnum;
	elf->sections = elf_alloc(elf->shnum, sizeof(*elf->sections));
	for (i = 0; i < elf->shnum; i++) {
		read_section(elf, i);
		contents += elf->sections[i].room;
		if (contents > elf->size)
			elf_die(elf, "its sections overlap");
	}
	check_names(elf);
	check_symbols(elf);
	for (i = 1; i < elf->shnum; i++)
		if (elf->sections[i].hdr.sh_type == SHT_RELA ||
		    elf->sections[i].hdr.sh_type == SHT_REL)
			check_relocs(elf, i);
}

/* Looking at it and changing it. */

const char *elf_section_name(const struct elf_file *elf, unsigned int index)
{
	return (const char *)elf->sections[elf->ehdr.e_shstrndx].data +
	       elf->sections[index].hdr.sh_name;
}

unsigned int elf_section_add(struct elf_file *elf, const Elf64_Shdr *hdr,
			     const char *prefix, const char *name)
{
	struct elf_section *more;

	if (elf->shnum + 1 >= SHN_LORESERVE)
		elf_die(elf, "it has too many sections for one more");
	more = elf_alloc(elf->shnum + 1, sizeof(*more));
	memcpy(more, elf->sections, elf->shnum * sizeof(*more));
	more[elf->shnum].hdr = *hdr;
	more[elf->shnum].data = elf_alloc(hdr->sh_size, 1);
	more[elf->shnum].moved = true;
	free(elf->sections);
	elf->sections = more;
	more[elf->shnum].hdr.sh_name = elf_string_add(elf, elf->ehdr.e_shstrndx, prefix, name);
	return elf->shnum++;
}

/* The bytes that are no longer used become zeros. */
void elf_section_shrink(struct elf_file *elf, unsigned int index, Elf64_Xword size)
{
	struct elf_section *sec = &elf->sections[index];

	memset(sec->data + size, 0, sec->hdr.sh_size - size);
	sec->hdr.sh_size = size;
}

Elf64_Word elf_string_add(struct elf_file *elf, unsigned int table,
			  const char *prefix, const char *name)
{
	struct elf_section *sec = &elf->sections[table];
	size_t head = strlen(prefix), tail = strlen(name) + 1;
	size_t at = sec->hdr.sh_size;
	unsigned char *more;

	if (at + head + tail > UINT32_MAX)
		elf_die(elf, "the string table in section %u is full", table);
	more = elf_alloc(at + head + tail, 1);
	memcpy(more, sec->data, at);
	memcpy(more + at, prefix, head);
	memcpy(more + at + head, name, tail);
	free(sec->data);
	sec->data = more;
	sec->hdr.sh_size = at + head + tail;
	sec->moved = true;
	return at;
}

unsigned int elf_symbol_count(const struct elf_file *elf)
{
	return elf->sections[elf->symtab].hdr.sh_size / sizeof(Elf64_Sym);
}

void elf_symbol_get(const struct elf_file *elf, unsigned int index, Elf64_Sym *sym)
{
	memcpy(sym, elf->sections[elf->symtab].data + index * sizeof(*sym), sizeof(*sym));
}

void elf_symbol_set(struct elf_file *elf, unsigned int index, const Elf64_Sym *sym)
{
	memcpy(elf->sections[elf->symtab].data + index * sizeof(*sym), sym, sizeof(*sym));
}

const char *elf_symbol_name(const struct elf_file *elf, const Elf64_Sym *sym)
{
	return (const char *)elf->sections[elf->strtab].data + sym->st_name;
}

unsigned int elf_rela_count(const struct elf_file *elf, unsigned int section)
{
	const Elf64_Shdr *hdr = &elf->sections[section].hdr;

	return hdr->sh_size / hdr->sh_entsize;
}

void elf_rela_get(const struct elf_file *elf, unsigned int section, unsigned int index,
		  Elf64_Rela *rela)
{
	const struct elf_section *sec = &elf->sections[section];

	memset(rela, 0, sizeof(*rela));
	memcpy(rela, sec->data + index * sec->hdr.sh_entsize, sec->hdr.sh_entsize);
}

void elf_rela_set(struct elf_file *elf, unsigned int section, unsigned int index,
		  const Elf64_Rela *rela)
{
	memcpy(elf->sections[section].data + index * sizeof(*rela), rela, sizeof(*rela));
}

/* Writing. */

/* A file that is built from its start; what is skipped becomes zeros. */
struct image {
	unsigned char *data;
	size_t used;
};

static void image_align(struct image *image, Elf64_Xword alignment)
{
	if (alignment > 1)
		image->used = (image->used + alignment - 1) / alignment * alignment;
}

/* An upper bound for the image, so that it is allocated once. */
static size_t image_bound(const struct elf_file *elf)
{
	size_t bound = elf->size + 16 + elf->shnum * sizeof(Elf64_Shdr);
	unsigned int i;

	for (i = 0; i < elf->shnum; i++)
		if (elf->sections[i].moved)
			bound += elf->sections[i].hdr.sh_size + 16;
	return bound;
}

/*
 * The old section headers are dropped when they are the end of the file, which
 * is where every linker puts them; otherwise their bytes stay, unused.
 */
static size_t image_start(const struct elf_file *elf)
{
	size_t headers = elf->ehdr.e_shnum * sizeof(Elf64_Shdr);
	unsigned int i;

	if (elf->ehdr.e_shoff < sizeof(Elf64_Ehdr) || elf->ehdr.e_shoff + headers != elf->size)
		return elf->size;
	for (i = 0; i < elf->shnum; i++)
		if (elf->sections[i].hdr.sh_offset + elf->sections[i].room > elf->ehdr.e_shoff)
			return elf->size;
	return elf->ehdr.e_shoff;
}

static void image_build(const struct elf_file *elf, struct image *image)
{
	Elf64_Ehdr ehdr = elf->ehdr;
	Elf64_Shdr *headers = elf_alloc(elf->shnum, sizeof(*headers));
	unsigned int i;

	image->data = elf_alloc(image_bound(elf), 1);
	image->used = image_start(elf);
	memcpy(image->data, elf->raw, image->used);
	for (i = 0; i < elf->shnum; i++) {
		const struct elf_section *sec = &elf->sections[i];

		headers[i] = sec->hdr;
		if (!sec->data)
			continue;
		if (!sec->moved) {
			memcpy(image->data + sec->hdr.sh_offset, sec->data, sec->room);
			continue;
		}
		image_align(image, 8);
		headers[i].sh_offset = image->used;
		memcpy(image->data + image->used, sec->data, sec->hdr.sh_size);
		image->used += sec->hdr.sh_size;
	}
	image_align(image, 8);
	ehdr.e_shoff = image->used;
	ehdr.e_shnum = elf->shnum;
	memcpy(image->data + image->used, headers, elf->shnum * sizeof(*headers));
	image->used += elf->shnum * sizeof(*headers);
	memcpy(image->data, &ehdr, sizeof(ehdr));
	free(headers);
}

/* Write it beside the old file and rename: a break leaves the old or the new file. */
void elf_file_write(const struct elf_file *elf)
{
	struct image image;
	struct stat st;
	size_t len = strlen(elf->path) + sizeof(".klp-reloc.XXXXXX");
	char *name = elf_alloc(len, 1);
	size_t done = 0;
	ssize_t count;
	int fd;

	image_build(elf, &image);
	snprintf(name, len, "%s.klp-reloc.XXXXXX", elf->path);
	fd = stat(elf->path, &st) ? -1 : mkstemp(name);
	if (fd < 0)
		elf_die(elf, "no file can be made beside it: %s", strerror(errno));
	while (done < image.used) {
		count = write(fd, image.data + done, image.used - done);
		if (count < 0)
			break;
		done += count;
	}
	if (done < image.used || fchmod(fd, st.st_mode & 07777) || fsync(fd) || close(fd) ||
	    rename(name, elf->path)) {
		int error = errno;

		unlink(name);
		elf_die(elf, "it can't be written: %s", strerror(error));
	}
	free(name);
	free(image.data);
}
