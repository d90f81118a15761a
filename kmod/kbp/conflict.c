// SPDX-License-Identifier: GPL-2.0-only
/*
 * Other live patches: two that replace the same function do not know of each
 * other, and the later one wins.
 *
 * Owns the refusal, in either order: as ours is enabled we look through those
 * that are; afterwards a module that comes with one of our functions in its
 * table is not let in, and who gets past that is seen within a second, if a
 * poller is awake. One that throws out all others ("atomic replace") calls none
 * of our callbacks, so we look whether ours is still in effect (klp.c). Locks:
 * klp_mutex, which the kernel holds around our callbacks, so nothing of ours is
 * held around it.
 */
#include <linux/livepatch.h>
#include <linux/module.h>

#include "kbp.h"

/* kernel/livepatch/core.c: what is enabled, and its lock. */
extern struct list_head klp_patches;
extern struct mutex klp_mutex;

/* The function of ours that @patch replaces too, or NULL. klp_mutex. */
static const char *kbp_conflict_in(struct klp_patch *patch)
{
	struct klp_object *obj;
	struct klp_func *func;

	klp_for_each_object(patch, obj) {
		/* Ours are all in the kernel itself. */
		if (obj->name)
			continue;
		klp_for_each_func(obj, func)
			if (kbp_replaces(func->old_name))
				return func->old_name;
	}
	return NULL;
}

/**
 * kbp_conflict_check() - is there another live patch of one of our functions?
 *
 * Context: klp_mutex held.
 * Return: 0 or -EBUSY.
 */
int kbp_conflict_check(void)
{
	struct klp_patch *patch;
	const char *name;

	list_for_each_entry(patch, &klp_patches, list) {
		name = patch == &kbp_patch ? NULL : kbp_conflict_in(patch);
		if (!name)
			continue;
		pr_err("kbp: the live patch %s replaces %s() too; one of both has to go\n",
		       patch->mod ? patch->mod->name : "of another module", name);
		return -EBUSY;
	}
	return 0;
}

/**
 * kbp_conflict_look() - step aside if another live patch came past our guard
 *
 * Context: thread, no lock of ours held.
 */
void kbp_conflict_look(void)
{
	int err;

	if (kbp_is_aside())
		return;
	/* Whoever enables a live patch now may need long; the next look is soon. */
	if (!mutex_trylock(&klp_mutex))
		return;
	err = kbp_conflict_check();
	mutex_unlock(&klp_mutex);
	if (err)
		kbp_step_aside();
}

/* The memory of a module that is being loaded. */
struct kbp_memory {
	struct kbp_range piece[KBP_MODULE_PIECES];
};

/* The text at @address, if it is a string within the module. */
static const char *kbp_conflict_text(const struct kbp_memory *memory,
				     unsigned long address)
{
	const struct kbp_range *piece;
	unsigned int i;

	for (i = 0; i < KBP_MODULE_PIECES; i++) {
		piece = &memory->piece[i];
		if (address >= piece->start && address < piece->end &&
		    memchr((const void *)address, '\0', piece->end - address))
			return (const char *)address;
	}
	return NULL;
}

static const char *kbp_conflict_in_piece(const struct kbp_memory *memory,
					 const struct kbp_range *piece)
{
	const unsigned long *word = (const unsigned long *)
		ALIGN(piece->start, sizeof(*word));
	const char *text;

	for (; (unsigned long)(word + 1) <= piece->end; word++) {
		text = kbp_conflict_text(memory, *word);
		if (text && kbp_replaces(text))
			return text;
	}
	return NULL;
}

/*
 * A module shows what it replaces only when it enables its live patch, and then
 * nobody asks us. Its table lies in its memory by now, whatever tool has made
 * it (struct klp_func, or what it is made from): each entry has a pointer to the
 * function's name. So we look for a pointer to one of ours. The bound is the
 * size of the module.
 */
static const char *kbp_conflict_in_module(struct module *mod)
{
	struct kbp_memory memory;
	const char *name = NULL;
	unsigned int i;

	for (i = 0; i < KBP_MODULE_PIECES; i++)
		memory.piece[i] = kbp_module_piece(mod, i);
	for (i = 0; i < KBP_MODULE_PIECES && !name; i++)
		name = kbp_conflict_in_piece(&memory, &memory.piece[i]);
	return name;
}

static int kbp_module_event(struct notifier_block *nb, unsigned long event,
			    void *ptr)
{
	struct module *mod = ptr;
	const char *name;

	if (event != MODULE_STATE_COMING || !is_livepatch_module(mod) ||
	    mod == THIS_MODULE || kbp_is_aside())
		return NOTIFY_DONE;
	name = kbp_conflict_in_module(mod);
	if (!name)
		return NOTIFY_DONE;
	pr_err("kbp: the live patch %s is refused, because it replaces %s() too; `kbp unload` first\n",
	       mod->name, name);
	return notifier_from_errno(-EBUSY);
}

static struct notifier_block kbp_module_nb = {
	.notifier_call = kbp_module_event,
};

int kbp_conflict_init(void)
{
	return register_module_notifier(&kbp_module_nb);
}

void kbp_conflict_exit(void)
{
	unregister_module_notifier(&kbp_module_nb);
}
