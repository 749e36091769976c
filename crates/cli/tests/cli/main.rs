//! `thalweg` as a user runs it. One test program, so that it is linked once.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

mod cli;
mod completions;
mod doctor;
mod fake;
mod former_limits;
mod input_files;
mod inputs;
mod messages;
mod newcomers;
mod package;
mod pages;
mod policy_files;
mod privileges;
mod replay;
mod schemas;
mod top;
mod watch;
mod wrong_inputs;
