//! Kernel map values as bytes and back.

use crate::raw;

/// A struct of the ABI header: fixed-width integers without padding. So every bit pattern is a
/// value, and every value is its bytes.
///
/// # Safety
/// Implement it only for such `#[repr(C)]` structs. The header asserts the sizes, so a hidden hole
/// would fail its build.
pub unsafe trait Pod: Copy + Default {}

// The layout of integers by `repr(C)` is that of the BPF target where the widest are aligned alike.
const _: () = assert!(align_of::<u64>() == 8);

macro_rules! pod {
    ($($name:ident),* $(,)?) => {$(
        // SAFETY: generated from the ABI header: integers only, no padding (size asserted).
        unsafe impl Pod for raw::$name {}
    )*};
}

pod!(
    thalweg_host_key,
    thalweg_host,
    thalweg_params,
    thalweg_arms,
    thalweg_clamp_key,
    thalweg_clamp_report,
    thalweg_meta,
    thalweg_conn,
    thalweg_event,
    thalweg_forget,
    thalweg_nat64_table,
    thalweg_worth,
    thalweg_worths,
    thalweg_counters,
    thalweg_model,
    thalweg_rate_flow,
    thalweg_measurement,
    thalweg_rate_settings,
    thalweg_rate_trace,
    thalweg_rate_decision,
    thalweg_policy_head,
    thalweg_policy_key4,
    thalweg_policy_key6,
    thalweg_policy_node,
    thalweg_policy_rule,
    thalweg_policy_flow,
    thalweg_policy_text,
    thalweg_policy_counters,
    thalweg_policy_failure,
    thalweg_policy_missed,
    thalweg_policy_reached,
    thalweg_policy_seen,
    thalweg_policy_silenced,
    thalweg_policy_event,
    thalweg_policy_outcome,
    thalweg_buffers_bounds,
    thalweg_buffers_report,
    thalweg_idle_network,
    thalweg_idle_settings,
    thalweg_idle_report,
    thalweg_timers,
    thalweg_timers_peers,
    thalweg_timers_report,
);

/// The bytes of a value.
pub fn bytes_of<T: Pod>(value: &T) -> &[u8] {
    // SAFETY: a Pod has no padding, so all its bytes are initialised; the slice borrows it.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// A value from its bytes; `None` if the length is not its size.
pub fn from_bytes<T: Pod>(bytes: &[u8]) -> Option<T> {
    if bytes.len() != size_of::<T>() {
        return None;
    }
    // SAFETY: the length was checked, any bit pattern is valid, the read may be unaligned.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}
