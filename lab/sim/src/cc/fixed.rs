//! A fixed rate: for tests of the network itself, and as traffic that reacts to nothing.

use serde::{Deserialize, Serialize};

use super::parameter::check_within;
use super::{Command, Context, Controller, Needs, ParameterError, Setup};

/// Parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// Rate, as a share of the line rate.
    pub fraction: f64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { fraction: 1.0 }
    }
}

impl Parameters {
    /// Checks that every parameter is in range.
    pub fn validate(&self) -> Result<(), ParameterError> {
        check_within("fraction", self.fraction, 1e-9..=1.0)
    }
}

/// Sends at a fixed rate.
#[derive(Debug, Clone)]
pub struct Fixed {
    fraction: f64,
}

impl Fixed {
    /// A controller for one flow.
    pub fn new(parameters: &Parameters) -> Self {
        Self {
            fraction: parameters.fraction,
        }
    }
}

impl Controller for Fixed {
    fn required_signals(&self) -> Needs {
        Needs::default()
    }

    fn start_flow(&mut self, setup: &Setup, context: &mut Context<'_>) {
        *context.command = Command {
            rate_bps: setup.limit(self.fraction * setup.line_rate_bps),
            window_bytes: f64::INFINITY,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Flow, assert_near, example_setup};
    use super::*;

    #[test]
    fn a_share_of_the_line_rate() {
        let flow =
            Flow::start_at_zero(Fixed::new(&Parameters { fraction: 0.25 }), &example_setup());
        assert_near(flow.rate_gbps(), 25.0);
        assert_eq!(flow.command.window_bytes, f64::INFINITY);
    }

    #[test]
    fn not_below_the_lowest_rate() {
        // A hundred-millionth of 100 Gbit/s is 1 kbit/s; the floor is 1 Mbit/s.
        let flow =
            Flow::start_at_zero(Fixed::new(&Parameters { fraction: 1e-8 }), &example_setup());
        assert_near(flow.command.rate_bps, 1e6);
    }
}
