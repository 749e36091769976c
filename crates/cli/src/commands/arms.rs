//! `thalweg arms`.

use anyhow::Result;
use thalweg_agent::view::Arm;
use thalweg_terminal::output;

use crate::options::Global;

/// Lists the congestion controls to choose from.
pub fn run(global: &Global) -> Result<()> {
    let arms: Vec<Arm> = global.agent_client()?.get("/v1/arms")?;
    output::show_value(&global.format, &arms, || arms_table(&arms))
}

fn arms_table(arms: &[Arm]) -> String {
    let rows = arms.iter().map(arm_row).collect();
    let header = [
        "Arm",
        "Available",
        "Default",
        "ECN only",
        "Refusals",
        "Last refusal",
    ];
    output::table(&header, &[4], rows)
}

fn arm_row(arm: &Arm) -> Vec<String> {
    let yes = |value: bool| if value { "yes" } else { "" }.to_owned();
    vec![
        arm.name.clone(),
        match (&arm.refused, arm.present) {
            (Some(_), _) => "refused",
            (None, true) => "yes",
            (None, false) => "no",
        }
        .to_owned(),
        yes(arm.system_default),
        yes(arm.needs_ecn),
        arm.refusals.to_string(),
        arm.refused.clone().unwrap_or_default(),
    ]
}
