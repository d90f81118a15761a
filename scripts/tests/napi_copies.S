# SPDX-License-Identifier: GPL-2.0-only
#
# A kernel in small for test_check_abi.py. __napi_schedule and trigger_rx_softirq are those of Debian's 6.1.0-56-amd64 as
# objdump prints them; the others are put together from them. Variants are switched on with --defsym.

	.text
_text:
__fentry__:
__x86_return_thunk:
	ret

__list_add_valid:
	call __fentry__
	ret

wake_up_process:
	call __fentry__
	ret

__raise_softirq_irqoff:
	call __fentry__
	ret

raise_softirq_irqoff:
	call __fentry__
	jmp __raise_softirq_irqoff

# Where pv_ops would be.
pv_ops:
	.skip 24

# Other files lie too far for a short jump.
	.skip 4096

# ____napi_schedule(), as gcc puts it into its callers.
	.macro schedule
	mov 0x10(%rdi),%rax
	mov $0x32e40,%rbp
	add %gs:0x199e8,%rbp
	test $0x1,%ah
	je 1f
	mov 0x188(%rdi),%rdi
	test %rdi,%rdi
	je 1f
	mov 0x18(%rdi),%eax
	cmp $0x1,%eax
	je 2f
	lock orb $0x2,0x11(%rbx)
2:	call wake_up_process
	jmp 4f
1:	mov 0x8(%rbp),%r12
	mov %rbp,%rdx
	mov %rbx,%rdi
	mov %r12,%rsi
	call __list_add_valid
	test %al,%al
	je 3f
	mov %rbx,0x8(%rbp)
	mov %rbp,(%rbx)
	mov %r12,0x8(%rbx)
	mov %rbx,(%r12)
3:	mov $0x3,%edi
	call raise_softirq_irqoff
4:
	.endm

__napi_schedule:
	.ifdef ENDBR
	endbr64
	.endif
	call __fentry__
	push %r13
	push %r12
	push %rbp
	push %rbx
	mov %rdi,%rbx
	call *pv_ops(%rip)
	mov %rax,%r13
	call *pv_ops+8(%rip)
	schedule
	test $0x200,%r13d
	je 5f
	call *pv_ops+16(%rip)
5:	pop %rbx
	pop %rbp
	pop %r12
	pop %r13
	jmp __x86_return_thunk

trigger_rx_softirq:
	call __fentry__
	push %rbx
	mov %rdi,%rbx
	mov $0x3,%edi
	call __raise_softirq_irqoff
	movl $0x0,0x2c8(%rbx)
	pop %rbx
	jmp __x86_return_thunk

# Ends with a jump to the raise function, with the number in another register; its threaded half lies elsewhere; and the
# call of __fentry__ is a NOP already.
rps_trigger_softirq:
	.byte 0x0f, 0x1f, 0x44, 0x00, 0x00
	mov $0x3,%ebp
	mov 0x120(%rdi),%rax
	mov %rdi,%rbx
	test $0x1,%ah
	jne rps_trigger_softirq.cold
	mov %ebp,%edi
	jmp raise_softirq_irqoff

rps_trigger_softirq.cold:
	lock orb $0x2,0x121(%rbx)
	call wake_up_process
	jmp __x86_return_thunk

# Wakes, sets a bit like that, and raises another softirq.
other_softirq:
	call __fentry__
	lock orb $0x2,0x11(%rbx)
	call wake_up_process
	mov $0x2,%edi
	jmp raise_softirq_irqoff

	.ifdef NEW
new_path:
	call __fentry__
	mov %rdi,%rbx
	schedule
	ret
	.endif

	.ifdef NOT_INLINED
____napi_schedule.isra.0:
	schedule
	ret
	.endif

	.ifdef HALF
half_a_copy:
	call __fentry__
	mov $0x3,%edi
	jmp raise_softirq_irqoff
	.endif

	.ifdef UNTRACEABLE
napi_watchdog:
	push %rbx
	ret
	.endif
	.ifdef RENAMED
napi_watchdog.constprop.0:
	call __fentry__
	ret
	.endif
	.ifdef ONCE
napi_watchdog:
	call __fentry__
	ret
	.endif
_etext:
