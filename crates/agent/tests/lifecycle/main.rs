//! The agent from start to end: failing and interrupted starts, reload, upgrade, crashes, removal.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

mod detach;
mod faults;
mod faults_pins;
mod faults_points;
mod faults_slots;
mod faults_start;
mod faults_store;
mod reload;
mod upgrade;
