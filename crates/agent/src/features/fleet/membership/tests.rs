//! Tests of the shards that an agent offers to the fleet.

#![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]

use super::*;

#[test]
fn shard_that_cannot_be_offered_keeps_back_no_other() {
    let measured = |shard: Shard| Measured {
        network: Network::Named(format!("site-{shard}")),
        age_s: 0,
        queue_q16: 0,
        arms: vec![Arm {
            name: "cubic".to_owned(),
            cost_q16: 0,
            evidence_q16: 1 << 16,
            log_rate_q16: 0,
            deviation_q16: 0,
            segments: 1,
            retransmitted: 0,
        }],
    };
    let shards: BTreeMap<Shard, Vec<Measured>> = Shard::all()
        .take(4)
        .map(|shard| (shard, vec![measured(shard)]))
        .collect();
    let (mut told, now) = (HashMap::new(), Instant::now());
    let mut offered = Vec::new();
    let outcome = offer_shards(shards.clone(), &mut told, now, |shard, _| {
        offered.push(shard.number());
        anyhow::ensure!(shard.number() % 2 == 0, "shard {shard} is refused");
        Ok(())
    });
    assert_eq!(outcome.unwrap_err().to_string(), "shard 1 is refused");
    assert_eq!(offered, [0, 1, 2, 3]);

    // Those that were refused are offered again, and the others are told.
    offered.clear();
    let outcome = offer_shards(shards, &mut told, now, |shard, _| {
        offered.push(shard.number());
        Ok(())
    });
    outcome.unwrap();
    assert_eq!(offered, [1, 3]);
}
