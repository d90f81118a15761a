// SPDX-License-Identifier: GPL-2.0-only
/*
 * The list of unexported symbols: one a line, "NAME" or "vmlinux NAME"; a '#'
 * starts a comment. Only unique symbols of the kernel proper can be listed,
 * because only these can be resolved without knowing one kernel's binary.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "symbol_list.h"

#define BLANKS	" \t\r\n"

static void die(const struct symbol_list *list, unsigned int line, const char *what)
{
	fprintf(stderr, "klp-reloc: %s:%u: %s\n", list->path, line, what);
	exit(EXIT_FAILURE);
}

static void add(struct symbol_list *list, unsigned int line, const char *name)
{
	static const char allowed[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.";
	size_t len = strlen(name);

	if (len > SYMBOL_NAME_MAX)
		die(list, line, "the name is too long");
	if (strspn(name, allowed) != len)
		die(list, line, "this is not the name of a symbol");
	if (symbol_list_has(list, name))
		die(list, line, "the symbol is listed twice");
	if (list->count == SYMBOL_LIST_MAX)
		die(list, line, "the list is too long");
	memcpy(list->names[list->count++], name, len + 1);
}

static void add_line(struct symbol_list *list, unsigned int line, char *text)
{
	char *first, *second;

	text[strcspn(text, "#")] = '\0';
	first = strtok(text, BLANKS);
	if (!first)
		return;
	second = strtok(NULL, BLANKS);
	if (second && strcmp(first, "vmlinux"))
		die(list, line, "only symbols of the object vmlinux can be listed");
	if (second && strtok(NULL, BLANKS))
		die(list, line, "there are more than two words on this line");
	add(list, line, second ? second : first);
}

void symbol_list_read(struct symbol_list *list, const char *path)
{
	unsigned int line = 0;
	char text[512];
	FILE *file;

	list->path = path;
	list->count = 0;
	file = fopen(path, "r");
	if (!file)
		die(list, 0, strerror(errno));
	while (fgets(text, sizeof(text), file)) {
		line++;
		if (!strchr(text, '\n') && !feof(file))
			die(list, line, "the line is too long");
		add_line(list, line, text);
	}
	if (ferror(file))
		die(list, line, "it can't be read");
	fclose(file);
}

bool symbol_list_has(const struct symbol_list *list, const char *name)
{
	unsigned int i;

	for (i = 0; i < list->count; i++)
		if (!strcmp(list->names[i], name))
			return true;
	return false;
}
