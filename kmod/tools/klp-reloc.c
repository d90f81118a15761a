// SPDX-License-Identifier: GPL-2.0-only
/*
 * klp-reloc: turn references to unexported kernel symbols into livepatch
 * relocations, in a module that kbuild has just linked.
 *
 *   klp-reloc [--strict] LIST MODULE.ko   rewrite the module in place
 *   klp-reloc --symvers LIST              print the list as a Module.symvers
 *
 * The module loader resolves exported symbols only. A livepatch module may
 * also name symbols that are not exported, when they are called
 * ".klp.sym.vmlinux.NAME,0", carry the section index SHN_LIVEPATCH, and all
 * their relocations stand in sections ".klp.rela.vmlinux.SECTION" (kernel
 * sources, Documentation/livepatch/module-elf-format.rst). The kernel then
 * looks them up by name while the module loads and refuses the module when one
 * is missing or ambiguous. No compiler writes this form; this program does.
 *
 * A file goes through: read, check (elf_file.c: nothing of the file is trusted
 * later that was not checked there), plan, write beside, rename. Whatever is
 * not understood ends with a sentence and an untouched file. Single-threaded;
 * memory is given back by exit.
 *
 * It runs wherever DKMS builds the module, so it needs libc and elf.h only.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "elf_file.h"
#include "symbol_list.h"

#ifndef SHN_LIVEPATCH
#define SHN_LIVEPATCH		0xff20
#endif
#ifndef SHF_RELA_LIVEPATCH
#define SHF_RELA_LIVEPATCH	0x00100000
#endif

#define SYM_FORMAT		".klp.sym.vmlinux.%s,0"
#define RELA_PREFIX		".klp.rela.vmlinux."

/* One run of the tool over one module. */
struct job {
	struct elf_file elf;
	const struct symbol_list *list;
	bool *is_klp;		/* for each symbol: it becomes a livepatch symbol */
	unsigned int symbols;	/* how many of them do */
	unsigned int relocs;	/* relocations moved so far */
	unsigned int sections;	/* sections that they went to */
};

/* The relocation types that the loader knows on x86-64, in all versions. */
static bool reloc_type_known(Elf64_Xword type)
{
	switch (type) {
	case R_X86_64_64:
	case R_X86_64_PC32:
	case R_X86_64_PLT32:
	case R_X86_64_32:
	case R_X86_64_32S:
	case R_X86_64_PC64:
		return true;
	default:
		return false;
	}
}

/* Is the string KEY=VALUE in the .modinfo section? */
static bool modinfo_has(const struct elf_file *elf, const char *entry)
{
	size_t len = strlen(entry) + 1;
	unsigned int i;
	size_t pos;

	for (i = 1; i < elf->shnum; i++) {
		const struct elf_section *sec = &elf->sections[i];

		if (strcmp(elf_section_name(elf, i), ".modinfo") || !sec->data)
			continue;
		for (pos = 0; pos + len <= sec->hdr.sh_size; pos++)
			if ((!pos || !sec->data[pos - 1]) && !memcmp(sec->data + pos, entry, len))
				return true;
	}
	return false;
}

/* How many sections does the module have that an earlier run has made? */
static unsigned int count_klp_sections(const struct elf_file *elf)
{
	unsigned int i, count = 0;

	for (i = 1; i < elf->shnum; i++)
		if (elf->sections[i].hdr.sh_flags & SHF_RELA_LIVEPATCH)
			count++;
	return count;
}

/* Mark the undefined symbols that are in the list. */
static void find_symbols(struct job *job)
{
	unsigned int i;
	Elf64_Sym sym;

	job->is_klp = elf_alloc(elf_symbol_count(&job->elf), sizeof(*job->is_klp));
	for (i = 1; i < elf_symbol_count(&job->elf); i++) {
		elf_symbol_get(&job->elf, i, &sym);
		if (sym.st_shndx != SHN_UNDEF)
			continue;
		job->is_klp[i] = symbol_list_has(job->list, elf_symbol_name(&job->elf, &sym));
		job->symbols += job->is_klp[i];
	}
}

/* Does the module refer to this name, in its plain or its livepatch form? */
static bool name_is_used(const struct job *job, const char *name)
{
	char klp[SYMBOL_NAME_MAX + sizeof(SYM_FORMAT)];
	unsigned int i;
	Elf64_Sym sym;

	snprintf(klp, sizeof(klp), SYM_FORMAT, name);
	for (i = 1; i < elf_symbol_count(&job->elf); i++) {
		elf_symbol_get(&job->elf, i, &sym);
		if (sym.st_shndx == SHN_UNDEF && !strcmp(elf_symbol_name(&job->elf, &sym), name))
			return true;
		if (sym.st_shndx == SHN_LIVEPATCH && !strcmp(elf_symbol_name(&job->elf, &sym), klp))
			return true;
	}
	return false;
}

/* Name the symbols of the list that the module has no use for. */
static unsigned int report_unused(const struct job *job, bool strict)
{
	unsigned int i, count = 0;

	for (i = 0; i < job->list->count; i++) {
		if (name_is_used(job, job->list->names[i]))
			continue;
		fprintf(stderr, "klp-reloc: %s: %s does not refer to %s, which %s lists\n",
			strict ? "error" : "warning", job->elf.path, job->list->names[i],
			job->list->path);
		count++;
	}
	return count;
}

/*
 * Which relocations of this section refer to livepatch symbols? Everything
 * that the loader would refuse or, worse, skip in silence is refused here.
 */
static unsigned int count_klp_relocs(const struct job *job, unsigned int index)
{
	const struct elf_file *elf = &job->elf;
	const char *target = elf_section_name(elf, elf->sections[index].hdr.sh_info);
	unsigned int i, found = 0;
	Elf64_Rela rela;

	for (i = 0; i < elf_rela_count(elf, index); i++) {
		elf_rela_get(elf, index, i, &rela);
		if (!job->is_klp[ELF64_R_SYM(rela.r_info)])
			continue;
		found++;
		if (!reloc_type_known(ELF64_R_TYPE(rela.r_info)))
			elf_die(elf, "section %s refers to a symbol of the list by the relocation type %u, which the module loader does not know",
				target, (unsigned int)ELF64_R_TYPE(rela.r_info));
	}
	if (found && elf->sections[index].hdr.sh_type != SHT_RELA)
		elf_die(elf, "section %s has relocations without addends; x86-64 modules have none of these",
			target);
	if (found && !strcmp(target, ".data..percpu"))
		elf_die(elf, "a per-CPU variable is initialised with a symbol of the list, which older kernels do not relocate; set it at run time");
	return found;
}

/* Move the @count livepatch relocations of section @index to a section of their own. */
static void move_relocs(struct job *job, unsigned int index, unsigned int count)
{
	struct elf_file *elf = &job->elf;
	unsigned int target = elf->sections[index].hdr.sh_info;
	unsigned int total = elf_rela_count(elf, index);
	unsigned int i, kept = 0, moved = 0, made;
	Elf64_Rela rela;
	Elf64_Shdr hdr = {
		.sh_type = SHT_RELA,
		.sh_flags = SHF_ALLOC | SHF_INFO_LINK | SHF_RELA_LIVEPATCH,
		.sh_link = elf->symtab,
		.sh_info = target,
		.sh_size = (Elf64_Xword)count * sizeof(rela),
		.sh_addralign = 8,
		.sh_entsize = sizeof(rela),
	};

	made = elf_section_add(elf, &hdr, RELA_PREFIX, elf_section_name(elf, target));
	for (i = 0; i < total; i++) {
		elf_rela_get(elf, index, i, &rela);
		if (job->is_klp[ELF64_R_SYM(rela.r_info)])
			elf_rela_set(elf, made, moved++, &rela);
		else
			elf_rela_set(elf, index, kept++, &rela);
	}
	elf_section_shrink(elf, index, (Elf64_Xword)kept * sizeof(rela));
	job->relocs += moved;
	job->sections++;
}

/*
 * Sections that are not loaded (debug information) keep their relocations: the
 * loader never applies these, and tools that read them want them there.
 */
static void move_all_relocs(struct job *job)
{
	struct elf_file *elf = &job->elf;
	unsigned int last = elf->shnum;
	unsigned int i, count;

	for (i = 1; i < last; i++) {
		const Elf64_Shdr *hdr = &elf->sections[i].hdr;

		if (hdr->sh_type != SHT_RELA && hdr->sh_type != SHT_REL)
			continue;
		if (!(elf->sections[hdr->sh_info].hdr.sh_flags & SHF_ALLOC))
			continue;
		count = count_klp_relocs(job, i);
		if (count)
			move_relocs(job, i, count);
	}
}

static void rename_symbols(struct job *job)
{
	char name[SYMBOL_NAME_MAX + sizeof(SYM_FORMAT)];
	struct elf_file *elf = &job->elf;
	unsigned int i;
	Elf64_Sym sym;

	for (i = 1; i < elf_symbol_count(elf); i++) {
		if (!job->is_klp[i])
			continue;
		elf_symbol_get(elf, i, &sym);
		snprintf(name, sizeof(name), SYM_FORMAT, elf_symbol_name(elf, &sym));
		sym.st_name = elf_string_add(elf, elf->strtab, name, "");
		sym.st_shndx = SHN_LIVEPATCH;
		elf_symbol_set(elf, i, &sym);
	}
}

static int process(const char *list_path, const char *module, bool strict)
{
	struct symbol_list list;
	struct job job = { .list = &list };
	unsigned int before;

	symbol_list_read(&list, list_path);
	elf_file_read(&job.elf, module);
	find_symbols(&job);
	before = count_klp_sections(&job.elf);
	/* A module that has to do with none of them is asked for nothing. */
	if ((strict || job.symbols || before) && report_unused(&job, strict) && strict)
		return EXIT_FAILURE;
	if (!job.symbols) {
		printf("%s: nothing to do, %s\n", module,
		       before ? "it has its livepatch relocations already" :
				"it refers to no symbol of the list");
		return EXIT_SUCCESS;
	}
	if (before)
		elf_die(&job.elf, "it has livepatch relocations already, but not for every symbol of the list; build it again from its sources");
	if (!modinfo_has(&job.elf, "livepatch=Y"))
		elf_die(&job.elf, "it refers to symbols of the list but is no livepatch module; MODULE_INFO(livepatch, \"Y\") is missing");
	move_all_relocs(&job);
	rename_symbols(&job);
	elf_file_write(&job.elf);
	printf("%s: %u livepatch symbols, %u relocations in %u sections\n",
	       module, job.symbols, job.relocs, job.sections);
	return EXIT_SUCCESS;
}

/* modpost believes a symbol list of this form and stops asking who exports them. */
static int print_symvers(const char *list_path)
{
	struct symbol_list list;
	unsigned int i;

	symbol_list_read(&list, list_path);
	for (i = 0; i < list.count; i++)
		printf("0x00000000\t%s\tvmlinux\tEXPORT_SYMBOL_GPL\t\n", list.names[i]);
	return fflush(stdout) ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "--symvers"))
		return print_symvers(argv[2]);
	if (argc == 3 && argv[1][0] != '-')
		return process(argv[1], argv[2], false);
	if (argc == 4 && !strcmp(argv[1], "--strict"))
		return process(argv[2], argv[3], true);
	fprintf(stderr, "usage: klp-reloc [--strict] LIST MODULE.ko\n"
			"       klp-reloc --symvers LIST\n");
	return 2;
}
