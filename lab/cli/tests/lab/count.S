/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The first process of a kernel in QEMU, and all that it does: it sends the time-stamp counter as the
 * end of a run, waits until the serial line has sent it, and restarts the machine, which ends QEMU.
 */
	.globl _start
_start:
	lea path(%rip), %rdi
	mov $1, %esi
	xor %edx, %edx
	mov $2, %eax
	syscall
	mov %eax, %ebx
	rdtsc
	shl $32, %rdx
	or %rdx, %rax
	lea digits_end(%rip), %rdi
	mov $16, %ecx
1:	mov %eax, %edx
	and $15, %edx
	lea hex(%rip), %rsi
	mov (%rsi,%rdx), %dl
	dec %rdi
	mov %dl, (%rdi)
	shr $4, %rax
	dec %ecx
	jnz 1b
	mov %ebx, %edi
	lea text(%rip), %rsi
	mov $(text_end - text), %edx
	mov $1, %eax
	syscall
	mov %ebx, %edi
	mov $0x5409, %esi
	mov $1, %edx
	mov $16, %eax
	syscall
	mov $0xfee1dead, %edi
	mov $0x28121969, %esi
	mov $0x01234567, %edx
	mov $169, %eax
	syscall
	ud2
path:	.asciz "/dev/ttyS1"
hex:	.ascii "0123456789abcdef"
text:	.ascii "{\"kind\":\"end\",\"error\":\""
	.ascii "................"
digits_end:
	.ascii "\"}\n"
text_end:
