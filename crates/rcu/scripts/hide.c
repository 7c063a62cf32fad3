/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * hide ARCHIVE: makes all symbols that the archive's objects define hidden, in place. A program or
 * shared object that links it neither exports its copy of the library nor takes another's.
 */
#include <ar.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if __SIZEOF_POINTER__ == 8
#define ELF(type) Elf64_##type
#else
#define ELF(type) Elf32_##type
#endif

static void hide(unsigned char *object, size_t size)
{
	ELF(Ehdr) header;
	ELF(Shdr) section;
	ELF(Sym) symbol;
	size_t i, at;

	if (size < sizeof(header) || memcmp(object, ELFMAG, SELFMAG) != 0)
		return;
	memcpy(&header, object, sizeof(header));
	for (i = 0; i < header.e_shnum; i++) {
		at = header.e_shoff + i * sizeof(section);
		if (at + sizeof(section) > size)
			return;
		memcpy(&section, object + at, sizeof(section));
		if (section.sh_type != SHT_SYMTAB || section.sh_offset + section.sh_size > size)
			continue;
		for (at = section.sh_offset; at < section.sh_offset + section.sh_size;
		     at += sizeof(symbol)) {
			memcpy(&symbol, object + at, sizeof(symbol));
			/* Bindings and visibilities are numbers of their own in both classes. */
			if (symbol.st_shndx == SHN_UNDEF ||
			    ELF64_ST_BIND(symbol.st_info) == STB_LOCAL)
				continue;
			symbol.st_other = (unsigned char)((symbol.st_other & ~3) | STV_HIDDEN);
			memcpy(object + at, &symbol, sizeof(symbol));
		}
	}
}

int main(int argc, char **argv)
{
	FILE *file = argc == 2 ? fopen(argv[1], "r+b") : NULL;
	struct ar_hdr member;
	unsigned char *bytes;
	size_t at, length, size;

	if (!file || fseek(file, 0, SEEK_END) != 0)
		return perror("hide: the archive"), 1;
	length = (size_t)ftell(file);
	bytes = malloc(length);
	rewind(file);
	if (!bytes || fread(bytes, 1, length, file) != length || length < SARMAG ||
	    memcmp(bytes, ARMAG, SARMAG) != 0)
		return fprintf(stderr, "hide: %s is no archive\n", argv[1]), 1;
	for (at = SARMAG; at + sizeof(member) <= length; at += size + size % 2) {
		memcpy(&member, bytes + at, sizeof(member));
		at += sizeof(member);
		size = strtoul(member.ar_size, NULL, 10);
		if (size > length - at)
			return fprintf(stderr, "hide: %s is cut off\n", argv[1]), 1;
		hide(bytes + at, size);
	}
	rewind(file);
	if (fwrite(bytes, 1, length, file) != length || fclose(file) != 0)
		return perror("hide: the archive"), 1;
	free(bytes);
	return 0;
}
