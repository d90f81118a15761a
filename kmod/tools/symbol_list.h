/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef KBP_SYMBOL_LIST_H
#define KBP_SYMBOL_LIST_H

#include <stdbool.h>

#define SYMBOL_NAME_MAX		127	/* characters of one name */
#define SYMBOL_LIST_MAX		256	/* names in one list */

/* The unexported kernel symbols that a module wants. */
struct symbol_list {
	const char *path;
	unsigned int count;
	char names[SYMBOL_LIST_MAX][SYMBOL_NAME_MAX + 1];
};

/* Read the file or end the program with a sentence. */
void symbol_list_read(struct symbol_list *list, const char *path);

bool symbol_list_has(const struct symbol_list *list, const char *name);

#endif /* KBP_SYMBOL_LIST_H */
