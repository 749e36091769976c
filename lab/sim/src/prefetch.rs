//! Prefetching of memory.

/// Tells the processor that the first `LINES` cache lines of a value will be used soon. It changes
/// no result, and does nothing on processors without a known instruction.
#[inline(always)]
#[allow(unsafe_code)]
pub(crate) fn prefetch_lines<T, const LINES: usize>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..LINES {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let address = std::ptr::from_ref(value)
            .cast::<i8>()
            .wrapping_add(line * 64);
        // SAFETY: a prefetch never faults, whatever the address, and SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
