//! Runs of the laboratory and of live links, on this machine and on kernels that are processes.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

mod lab_backends;
mod lab_gate;
mod lab_kernels;
mod lab_paths;
mod lab_policy;
mod lab_qemu;
mod lab_rate;
mod lab_stack;
mod lab_uml;
mod lab_uml_host;
mod lab_virtual;
mod link;
mod link_log;
mod link_signals;
mod uml;
mod virtual_time;
