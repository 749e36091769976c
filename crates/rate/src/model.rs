//! A whole model: its features, and its network or trees.

use crate::{Fault, Features, Flow, Forest, Measurement, Network};

/// A network or trees: turns inputs into an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decider {
    /// A network.
    Network(Network),
    /// One tree or several.
    Forest(Forest),
}

impl Decider {
    /// Number of its inputs.
    pub fn input_count(&self) -> usize {
        match self {
            Self::Network(network) => network.input_count(),
            Self::Forest(forest) => forest.input_count(),
        }
    }

    /// The action, Q15, for features in Q15.
    ///
    /// Panics on fewer inputs than [`Self::input_count`].
    pub fn infer(&self, inputs: &[i16]) -> i16 {
        match self {
            Self::Network(network) => network.infer(inputs),
            Self::Forest(forest) => forest.infer(inputs),
        }
    }
}

/// Decides for any number of flows, each with its own [`Flow`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    features: Features,
    decider: Decider,
}

impl Model {
    /// Both must have the same number of inputs.
    pub fn new(features: Features, decider: Decider) -> Result<Self, Fault> {
        if features.input_count() != decider.input_count() {
            return Err(Fault::new(
                "features",
                format!("{} inputs", features.input_count()),
                format!("{}, as many as the model has", decider.input_count()),
            ));
        }
        Ok(Self { features, decider })
    }

    /// Features of the model: its inputs.
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// Network or trees of the model.
    pub fn decider(&self) -> &Decider {
        &self.decider
    }

    /// The action, Q15, for a measurement; the flow stores both. [`next_rate`](super::next_rate)
    /// makes the next rate of it.
    pub fn decide_action(&self, flow: &mut Flow, measurement: &Measurement) -> i16 {
        let action_q15 = self.decider.infer(self.features.observe(flow, measurement));
        flow.store_action(action_q15);
        action_q15
    }
}
