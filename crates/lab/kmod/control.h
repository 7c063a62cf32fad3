/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The control file of a module in debugfs: a write is a command, run under
 * control_lock. Included once by the module, which defines command().
 */
#ifndef REPRIEVE_CONTROL_H
#define REPRIEVE_CONTROL_H

#include <linux/fs.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/string.h>
#include <linux/uaccess.h>

static DEFINE_MUTEX(control_lock);

/* Returns 0 or an error. May change the text. */
static int command(char *text);

static ssize_t control_write(struct file *file, const char __user *from,
			     size_t size, loff_t *pos)
{
	char text[256];
	int err;

	if (size >= sizeof(text))
		return -EINVAL;
	if (copy_from_user(text, from, size))
		return -EFAULT;
	text[size] = '\0';
	err = mutex_lock_interruptible(&control_lock);
	if (err)
		return err;
	err = command(strim(text));
	mutex_unlock(&control_lock);
	return err ? err : size;
}

static const struct file_operations control_operations = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = control_write,
	.llseek = noop_llseek,
};

#endif
