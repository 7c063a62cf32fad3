// SPDX-License-Identifier: MIT OR Apache-2.0
// A section with one entry, which arms, calls `body`, and disarms. The tests put a `body` behind
// it.
#include <stdint.h>
#include <string.h>

#define IN __attribute__((section("reprieve_restart"), noinline, noclone, noipa, used))

__asm__(".pushsection .data.rel.descriptor,\"aw\",@progbits\n"
	".balign 32\n"
	"descriptor: .long 0, 0\n"
	".quad __start_reprieve_restart, 0, abort_handler, 0\n"
	".popsection\n"
	".pushsection .text\n"
	".byte 0x0f, 0xb9, 0x3d\n"
	".long 0x53053053\n"
	"abort_handler: ud2\n"
	".popsection\n"
	".pushsection reprieve_restart,\"ax\",@progbits\n"
	".globl entry\n"
	".type entry, @function\n"
	"entry:\n"
	"push %rdx\n"
	"lea descriptor(%rip), %rax\n"
	"mov %rax, (%rdx)\n"
	"call body\n"
	"pop %rdx\n"
	"movq $0, (%rdx)\n"
	"mov $1, %edx\n"
	"ret\n"
	".size entry, . - entry\n"
	".popsection\n");

void entry(const void *argument, void *result, void *cs);

struct node {
	uint64_t key;
	struct node *next;
	unsigned char value[512];
};

uint64_t global;
void (*hook)(void);

int main(void)
{
	return (int)(uintptr_t)(void *)entry & 0;
}
