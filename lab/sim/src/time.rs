//! Simulated time.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

use serde::Serialize;

/// A moment of a simulation, or the distance between two, in picoseconds.
///
/// A byte takes 80 ps at 100 Gbit/s and 20 ps at 400 Gbit/s. These are whole numbers, so packets do
/// not drift. 64 bits last for 213 days. It serializes as a number of picoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Time(u64);

impl Time {
    /// The start of a simulation; also a duration of zero.
    pub const ZERO: Self = Self(0);
    /// Later than everything.
    pub const MAX: Self = Self(u64::MAX);

    /// From picoseconds.
    pub const fn from_ps(ps: u64) -> Self {
        Self(ps)
    }

    /// From nanoseconds.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns * 1_000)
    }

    /// From microseconds.
    pub const fn from_us(us: u64) -> Self {
        Self(us * 1_000_000)
    }

    /// From seconds, to the nearest picosecond. NaN and negative values become zero.
    pub fn from_secs(seconds: f64) -> Self {
        Self((seconds * 1e12).round() as u64)
    }

    /// In picoseconds.
    pub const fn ps(self) -> u64 {
        self.0
    }

    /// In microseconds.
    pub fn us(self) -> f64 {
        self.0 as f64 * 1e-6
    }

    /// In seconds.
    pub fn secs(self) -> f64 {
        self.0 as f64 * 1e-12
    }

    /// Distance from an earlier moment; zero if `earlier` is later.
    pub const fn saturating_sub(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Time {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Time {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sub for Time {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ps if ps < 1_000_000 => write!(f, "{} ns", ps as f64 / 1e3),
            ps if ps < 1_000_000_000 => write!(f, "{} µs", ps as f64 / 1e6),
            ps if ps < 1_000_000_000_000 => write!(f, "{} ms", ps as f64 / 1e9),
            ps => write!(f, "{} s", ps as f64 / 1e12),
        }
    }
}
