//! How the 5 % of false alarms is shared among all that is compared.

use strum::{EnumString, IntoStaticStr};

use crate::advice::CHOICES_MAX;
use crate::row::{ROWS, Row};

/// Probability that any comparison of all rows and groups, at any look, calls a difference where
/// there is none.
pub const ALPHA: f64 = 0.05;

/// Common property of a group of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, EnumString, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Scope {
    /// All of them.
    All,
    /// The arm that the learner last gave to the host of the connections.
    Arm,
    /// The remote prefix of the connections.
    Prefix,
    /// The service's port.
    Port,
    /// The source whose measurements decided about the first connection of the hour.
    Source,
}

impl Scope {
    /// All scopes.
    pub const EACH: [Self; 5] = [Self::All, Self::Arm, Self::Prefix, Self::Port, Self::Source];

    /// Name of the scope, in files and on the command line.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The scope of a name.
    pub fn parse(name: &str) -> Option<Self> {
        name.parse().ok()
    }

    /// Largest number of groups at a time. It bounds memory, and α depends on it.
    pub fn group_limit(self) -> usize {
        match self {
            Self::All => 1,
            Self::Arm => 16,
            Self::Prefix => 64,
            Self::Port => 32,
            Self::Source => 2,
        }
    }

    /// The rows that are compared in each group: all of them, or the four measures.
    pub fn row_count(self) -> usize {
        match self {
            Self::All => ROWS,
            _ => Row::MEASURES.len(),
        }
    }
}

/// The α of one row of one group. Half of [`ALPHA`] is for [`Scope::All`]; the other half is for
/// the four other scopes in equal shares. Within a scope all rows of all possible groups have the
/// same.
pub fn row_alpha(scope: Scope) -> f64 {
    let share = match scope {
        Scope::All => 0.5,
        _ => 0.5 / 4.0,
    };
    ALPHA * share / (scope.group_limit() * scope.row_count()) as f64
}

/// The α of one measure of one choice of advice. Half of [`ALPHA`] is for [`Scope::All`], a quarter
/// each for prefixes and ports; arms are no groups here but choices, tried or found by themselves.
pub fn advice_alpha(scope: Scope) -> f64 {
    let share = match scope {
        Scope::All => 0.5,
        _ => 0.25,
    };
    let comparisons = scope.group_limit() * Row::MEASURES.len() * 2 * CHOICES_MAX;
    ALPHA * share / comparisons as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_sum_to_the_whole() {
        let sum: f64 = Scope::EACH
            .iter()
            .map(|scope| row_alpha(*scope) * (scope.group_limit() * scope.row_count()) as f64)
            .sum();
        assert!((sum - ALPHA).abs() < 1e-12, "{sum}");
        // Four measures, in each of two ways for fifteen arms.
        let advised = [Scope::All, Scope::Prefix, Scope::Port];
        let sum: f64 = advised
            .iter()
            .map(|scope| advice_alpha(*scope) * (scope.group_limit() * 4 * 2 * 15) as f64)
            .sum();
        assert!((sum - ALPHA).abs() < 1e-12, "{sum}");
    }
}
