//! Parts of `[traffic]`: how many flows there are, how large they are, and how long they rest.
//! What differs from round to round is a list, taken over and over.

use std::fmt;

use serde::{Serialize, Serializer};
use thalweg_units::reader::{Table, any_number, whole_number};
use thalweg_units::schema;
use toml::de::DeValue;

use crate::units::{Delay, Probability, Size};

/// The number of flows at once in each round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flows(Vec<u32>);

/// Most numbers in the list of a [`Flows`].
const MOST_NUMBERS: usize = 100;

impl Flows {
    /// The numbers of successive rounds, over and over. There is at least one.
    pub fn new(numbers: Vec<u32>) -> Self {
        assert!(!numbers.is_empty(), "a round has a number of flows");
        Self(numbers)
    }

    /// One number for all rounds.
    pub fn same_each_round(number: u32) -> Self {
        Self(vec![number])
    }

    /// The number of a round, counted from 0.
    pub fn in_round(&self, round: u32) -> u32 {
        self.0[round as usize % self.0.len()]
    }

    /// Takes a number, or a list of them, up to `most`.
    pub(super) fn from_table(table: &mut Table<'_>, most: u32) -> Self {
        let number = |value: &DeValue<'_>| {
            let number = whole_number(value).and_then(|number| u32::try_from(number).ok());
            number
                .filter(|number| (1..=most).contains(number))
                .ok_or(None)
        };
        let expected = format!("a whole number from 1 to {most}, or a list of them");
        let form = || schema::whole(1..=most);
        let numbers = table.list("flows", MOST_NUMBERS, &expected, number, form);
        match numbers.is_empty() {
            true => Self::same_each_round(2),
            false => Self(numbers),
        }
    }
}

impl fmt::Display for Flows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(u32::to_string).collect();
        f.write_str(&numbers.join(", "))
    }
}

impl Serialize for Flows {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0[..] {
            [always] => serializer.serialize_u32(*always),
            several => several.serialize(serializer),
        }
    }
}

/// The bytes of each flow or response.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum Sizes {
    /// All alike.
    #[serde(rename = "bytes")]
    Each(Size),
    /// All of a round alike, those of successive rounds over and over. There are several.
    #[serde(rename = "bytes")]
    InTurn(Vec<Size>),
    /// Lognormal.
    #[serde(rename = "sizes")]
    Lognormal {
        /// Median of the sizes, bytes.
        median: Size,
        /// Mean of the sizes, bytes.
        mean: Size,
        /// Tail that replaces the largest sizes.
        #[serde(skip_serializing_if = "Option::is_none")]
        tail: Option<Tail>,
    },
}

/// A part of the sizes by a Pareto distribution, cut off at its end: a size above `least` exceeds x
/// with a probability of (`least` / x)^`shape`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Tail {
    /// The part.
    pub share: Probability,
    /// The smallest of them.
    pub least: Size,
    /// The exponent: the smaller, the larger are the largest.
    pub shape: f64,
    /// Larger ones, of the rest too, count as this.
    pub most: Size,
}

impl Tail {
    fn from_table(mut table: Table<'_>) -> Option<Self> {
        let share = table.needed("share");
        let least: Option<Size> = table.needed("least");
        let exponent = |value: &DeValue<'_>| {
            any_number(value).filter(|shape| (LEAST_SHAPE..=MOST_SHAPE).contains(shape))
        };
        let expected = format!("a number from {LEAST_SHAPE} to {MOST_SHAPE}");
        let shape = table.required("shape", "the exponent", exponent, &expected, || {
            serde_json::json!({ "type": "number", "minimum": LEAST_SHAPE, "maximum": MOST_SHAPE })
        });
        let most: Option<Size> = table.needed("most");
        table.refuse_unknown_keys();
        if let (Some(least), Some(most)) = (least, most)
            && (least.bytes() == 0 || most <= least)
        {
            let expected = format!("more than `least`, {least}, which is more than 0");
            table.wrong("most", most.to_string(), expected);
        }
        Some(Self {
            share: share?,
            least: least?,
            shape: shape?,
            most: most?,
        })
    }
}

/// The exponents of a [`Tail`] that make sense.
const LEAST_SHAPE: f64 = 0.1;
const MOST_SHAPE: f64 = 10.0;

impl Sizes {
    /// Takes `bytes` or `sizes`, of at least this many bytes.
    pub(super) fn from_table(table: &mut Table<'_>, least: u64) -> Self {
        let too_small = |size: &Size| {
            let is_it = size.bytes() < least;
            is_it.then(|| format!("at least {least} bytes"))
        };
        let bytes = table.values("bytes", MOST_NUMBERS, too_small);
        let Some(mut sizes) = table.take_table("sizes") else {
            return match &bytes[..] {
                [] => Self::Each(Size::from_bytes(10_000)),
                [always] => Self::Each(*always),
                _ => Self::InTurn(bytes),
            };
        };
        let median: Option<Size> = sizes.needed("median");
        let mean: Option<Size> = sizes.needed("mean");
        let tail = sizes.take_table("tail").and_then(Tail::from_table);
        sizes.refuse_unknown_keys();
        if let (Some(median), Some(mean)) = (median, mean)
            && (median.bytes() == 0 || mean <= median)
        {
            let expected = format!("more than the median of {median}, which is more than 0");
            sizes.wrong("mean", mean.to_string(), expected);
        }
        if !bytes.is_empty() {
            table.wrong("bytes", "it beside `sizes`", "one of the two");
        }
        let default = Size::from_bytes(1);
        Self::Lognormal {
            median: median.unwrap_or(default),
            mean: mean.unwrap_or(default),
            tail,
        }
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Each(size) => size.fmt(f),
            Self::InTurn(sizes) => {
                let sizes: Vec<String> = sizes.iter().map(Size::to_string).collect();
                write!(f, "{} by round", sizes.join(", "))
            }
            Self::Lognormal { median, mean, tail } => {
                write!(f, "lognormal sizes (median {median}, mean {mean}")?;
                if let Some(Tail {
                    share,
                    least,
                    shape,
                    most,
                }) = tail
                {
                    write!(
                        f,
                        "; {share} Pareto from {least} to {most}, exponent {shape}"
                    )?;
                }
                f.write_str(")")
            }
        }
    }
}

/// Takes a size of at least this many bytes.
pub(super) fn at_least(table: &mut Table<'_>, key: &'static str, least: u64) -> Option<Size> {
    let size: Size = table.value(key)?;
    if size.bytes() < least {
        table.wrong(key, size.to_string(), format!("at least {least} bytes"));
    }
    Some(size)
}

/// The time between the responses of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Idle {
    /// From the end of one to the begin of the next.
    #[serde(rename = "idle")]
    After(Delay),
    /// From begin to begin; none after a late one.
    #[serde(rename = "every")]
    Every(Delay),
}

impl Idle {
    /// Takes `idle` or `every`.
    pub(super) fn from_table(table: &mut Table<'_>) -> Self {
        let idle: Option<Delay> = table.value("idle");
        let every: Option<Delay> = table.value("every");
        match (idle, every) {
            (Some(_), Some(every)) => {
                table.wrong("every", format!("{every} beside `idle`"), "one of the two");
                Self::Every(every)
            }
            (None, Some(every)) => Self::Every(every),
            (idle, None) => Self::After(idle.unwrap_or(Delay::from_us(10_000))),
        }
    }
}

impl fmt::Display for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::After(time) => write!(f, "{time} apart"),
            Self::Every(time) => write!(f, "one every {time}"),
        }
    }
}
