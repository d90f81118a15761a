/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef KBP_ELF_FILE_H
#define KBP_ELF_FILE_H

#include <elf.h>
#include <stdbool.h>
#include <stddef.h>

/*
 * An x86-64 relocatable object in memory: section headers and contents, which
 * can be changed, extended and written back. After elf_file_read() these hold:
 * every sh_name, sh_link of a relocation section, sh_info of one, symbol index
 * of a relocation and st_name is in range, and string tables end with a NUL.
 */
struct elf_section {
	Elf64_Shdr hdr;
	unsigned char *data;	/* contents; NULL when the file holds none */
	Elf64_Xword room;	/* bytes at sh_offset that belong to the section */
	bool moved;		/* it outgrew its room and will be written at the end */
};

struct elf_file {
	const char *path;
	unsigned char *raw;	/* the file as it was read */
	size_t size;
	Elf64_Ehdr ehdr;
	struct elf_section *sections;
	unsigned int shnum;
	unsigned int symtab;	/* section index of the symbol table */
	unsigned int strtab;	/* section index of its strings */
};

/* All of these end the program with a sentence when they cannot do their work. */
void elf_file_read(struct elf_file *elf, const char *path);
void elf_file_write(const struct elf_file *elf);
void *elf_alloc(size_t count, size_t size);
void elf_die(const struct elf_file *elf, const char *format, ...)
	__attribute__((noreturn, format(printf, 2, 3)));

const char *elf_section_name(const struct elf_file *elf, unsigned int index);
unsigned int elf_section_add(struct elf_file *elf, const Elf64_Shdr *hdr,
			     const char *prefix, const char *name);
void elf_section_shrink(struct elf_file *elf, unsigned int index, Elf64_Xword size);

/* Append prefix + name to a string table; returns its offset there. */
Elf64_Word elf_string_add(struct elf_file *elf, unsigned int table,
			  const char *prefix, const char *name);

unsigned int elf_symbol_count(const struct elf_file *elf);
void elf_symbol_get(const struct elf_file *elf, unsigned int index, Elf64_Sym *sym);
void elf_symbol_set(struct elf_file *elf, unsigned int index, const Elf64_Sym *sym);
const char *elf_symbol_name(const struct elf_file *elf, const Elf64_Sym *sym);

/* Entries of a SHT_RELA section; of a SHT_REL section too, with the addend 0. */
unsigned int elf_rela_count(const struct elf_file *elf, unsigned int section);
void elf_rela_get(const struct elf_file *elf, unsigned int section, unsigned int index,
		  Elf64_Rela *rela);
void elf_rela_set(struct elf_file *elf, unsigned int section, unsigned int index,
		  const Elf64_Rela *rela);

#endif /* KBP_ELF_FILE_H */
