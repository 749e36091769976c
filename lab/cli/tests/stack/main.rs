//! Commands on the TCP of user-mode Linux, and links to the machine's network.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

mod link_outside;
mod stack;
mod stack_learn;
mod stack_programs;
mod stack_terminal;
mod stack_user;
mod stack_wire;
