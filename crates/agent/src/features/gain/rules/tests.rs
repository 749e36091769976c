use thalweg_gain::Ledger;
use thalweg_units::random::Random;

use super::*;

const HALF: u32 = 1 << 31;

fn rule(name: &str, trial: Option<(u32, u32, u64)>) -> TrialRule {
    TrialRule {
        name: name.to_owned(),
        trial: trial.map(|(share, ladder, key)| Trial { share, ladder, key }),
    }
}

/// Two rules of one ladder, one without a share, one of its own.
fn policy() -> Trials {
    Trials {
        policy: "windows".to_owned(),
        number: 3,
        dry_run: false,
        rules: vec![
            rule("twenty", Some((HALF / 2, 0, 20))),
            rule("forty", Some((HALF, 0, 40))),
            rule("rest", None),
            rule("other", Some((HALF, 3, 7))),
        ],
    }
}

fn rules(policy: Trials) -> Rules {
    let mut rules = Rules::default();
    let kept = |key: u64| {
        let kept = KeptGain {
            ledger: Ledger::default(),
            since_ms: 0,
            reverts: Vec::new(),
        };
        (key, kept)
    };
    let loaded = rules.missing(&policy).into_iter().map(kept).collect();
    rules.adopt(Some(policy), loaded);
    rules
}

fn outcome(trial: u32, rule: u32, host: u16, busy_us: u64) -> raw::thalweg_policy_outcome {
    let mut remote = [0; 16];
    remote[10..12].fill(0xff);
    remote[12..].copy_from_slice(&[192, 0, (host >> 8) as u8, host as u8]);
    raw::thalweg_policy_outcome {
        time_ns: 5 * HOUR_NS,
        remote,
        remote_port: 443,
        generation: 3,
        rule,
        trial,
        bytes: 500_000,
        busy_us,
        segs_out: 400,
        ..Default::default()
    }
}

/// Flows that the rule took and that it left alone, but for the first, which is the yardstick.
fn flows(rules: &Rules, name: &str) -> (u64, u64) {
    let rule = rules.view(name, Scope::All, 0, 0).unwrap().rule.unwrap();
    (rule.taken, rule.left)
}

#[test]
fn flows_of_a_ladder_are_compared_with_those_that_all_of_it_left() {
    let mut rules = rules(policy());
    let none = raw::THALWEG_POLICY_NONE;
    // The yardstick of every rule.
    rules.take(&[outcome(0, none, 0, 1000), outcome(3, none, 0, 1000)]);
    let ended = [
        outcome(0, 0, 1, 1000),
        outcome(0, 1, 2, 1000),
        outcome(0, 1, 3, 1000),
        // Left by the ladder; what another rule did then is part of being left.
        outcome(0, none, 4, 1000),
        outcome(0, 2, 5, 1000),
        outcome(0, 3, 6, 1000),
        outcome(3, 3, 7, 1000),
    ];
    rules.take(&ended);
    assert_eq!(flows(&rules, "twenty"), (1, 3));
    assert_eq!(flows(&rules, "forty"), (2, 3));
    assert_eq!(flows(&rules, "other"), (1, 0));
    // Those of another policy, and of no experiment.
    let mut strange = [outcome(0, 0, 1, 1000), outcome(2, 2, 1, 1000)];
    strange[0].generation = 2;
    rules.take(&strange);
    assert_eq!(flows(&rules, "twenty"), (1, 3));
}

#[test]
fn flows_without_the_settings_of_their_rule_are_counted_and_not_compared() {
    let mut rules = rules(policy());
    let none = raw::THALWEG_POLICY_NONE;
    let overridden = |trial, rule, host| raw::thalweg_policy_outcome {
        flags: raw::THALWEG_OUTCOME_OVERRIDDEN,
        ..outcome(trial, rule, host, 1000)
    };
    rules.take(&[outcome(0, none, 0, 1000)]);
    rules.take(&[
        outcome(0, 0, 1, 1000),
        overridden(0, 0, 2),
        overridden(0, 0, 3),
        overridden(0, 1, 4),
        // Left by the ladder, whatever became of the settings of another rule.
        overridden(0, 2, 5),
    ]);
    let of = |name: &str| {
        let rule = rules.view(name, Scope::All, 0, 0).unwrap().rule.unwrap();
        (rule.taken, rule.overridden, rule.left)
    };
    assert_eq!(of("twenty"), (1, 2, 1));
    assert_eq!(of("forty"), (0, 1, 1));
    let tallies = rules.count_overridden();
    let words = tallies.iter();
    let words = words.map(|it| (it.words)(&it.subject, it.overridden, it.all));
    let took = "ended without its settings (the kernel refused one, or something replaced it), and are \
                not compared";
    assert_eq!(
        words.collect::<Vec<_>>(),
        [
            format!("1 of 1 flows that rule forty took {took}"),
            format!("2 of 3 flows that rule twenty took {took}"),
        ]
    );
}

#[test]
fn a_rule_that_is_worse_is_suspended_for_a_day() {
    let mut rules = rules(policy());
    let mut random = Random::new(1);
    for host in 0..400 {
        for _ in 0..4 {
            let noise = (random.fraction() - 0.5).exp2();
            let (taken, factor) = match random.below(2) {
                0 => (3, 1.3),
                _ => (2, 1.0),
            };
            rules.take(&[outcome(3, taken, host, (1e6 * noise * factor) as u64)]);
        }
    }
    let looked = rules.look(5 * HOUR_NS, 1000, true);
    let [(name, revert)] = &looked.begun[..] else {
        panic!("{looked:?}");
    };
    assert_eq!(name, "other");
    assert!(
        revert.why.starts_with("Transfers take") && revert.why.contains("left alone in"),
        "{revert:?}"
    );
    assert_eq!(rules.suspended(1000, true)[0].1, 7);
    let again = rules.look(6 * HOUR_NS, 2000, true);
    assert_eq!(again, RulesLooked::default());
    let after = rules.look(30 * HOUR_NS, 1000 + REVERTED_MS, true);
    assert_eq!(after.ended, ["other"]);
    assert!(after.begun.is_empty() && rules.suspended(1000, true).is_empty());
    // The comparison has begun anew.
    let view = rules.view("other", Scope::All, 0, 0).unwrap();
    assert!(view.summary.starts_with("No connection"), "{view:?}");
}

#[test]
fn rule_twice_as_slow_with_odd_host_hours_is_suspended() {
    // 440 host-hours on each side; then those of one host, or of five, on either.
    for (odd_rule, busy_us, number) in [
        (3, 1_000, 1),
        (2, 1 << 40, 1),
        (3, 1_000, 5),
        (2, 1 << 40, 5),
    ] {
        let mut rules = rules(policy());
        let mut random = Random::new(1);
        for host in 0..880 {
            let noise = (random.fraction() - 0.5).exp2();
            let (taken, factor) = if host % 2 == 0 { (3, 2.0) } else { (2, 1.0) };
            rules.take(&[outcome(3, taken, host, (1e6 * noise * factor) as u64)]);
        }
        for host in 0..16 * number {
            rules.take(&[outcome(3, odd_rule, 1_000 + host / 16, busy_us)]);
        }
        let looked = rules.look(5 * HOUR_NS, 1000, true);
        assert_eq!(looked.begun.len(), 1, "{odd_rule} {busy_us} {number}");
        assert!(looked.begun[0].1.why.contains("more time"), "{looked:?}");
    }
}

#[test]
fn a_policy_that_comes_again_goes_on() {
    let mut rules = rules(policy());
    let ended = [outcome(3, 3, 1, 1000), outcome(3, 2, 2, 1000)];
    rules.take(&ended);
    let mut next = policy();
    next.number = 4;
    assert!(rules.missing(&next).is_empty());
    rules.adopt(Some(next), BTreeMap::new());
    assert_eq!(flows(&rules, "other"), (0, 1));
    rules.adopt(None, BTreeMap::new());
    assert!(rules.suspended(0, true).is_empty() && rules.views(0).is_empty());
}

/// The rules of [`policy`], one of which was suspended at 1000 ms.
fn suspended_rules() -> Rules {
    let mut rules = rules(policy());
    rules.kept.get_mut(&7).unwrap().reverts.push(Revert {
        arm: None,
        since_ms: 1000,
        until_ms: 1000 + REVERTED_MS,
        why: "Transfers take more time".to_owned(),
    });
    rules
}

#[test]
fn suspension_ends_while_its_policy_is_not_in_force() {
    let mut rules = suspended_rules();
    rules.adopt(None, BTreeMap::new());
    assert_eq!(
        rules.look(30 * HOUR_NS, 1000 + REVERTED_MS, true),
        RulesLooked::default()
    );
    rules.adopt(Some(policy()), BTreeMap::new());
    let before = rules.suspended(999 + REVERTED_MS, true);
    assert_eq!((before.len(), before[0].1), (1, 7));
    assert!(rules.suspended(1000 + REVERTED_MS, true).is_empty());
    assert!(rules.suspended(2000, false).is_empty());
    // The next look forgets it, and begins the comparison anew.
    let looked = rules.look(30 * HOUR_NS, 1000 + REVERTED_MS, true);
    assert_eq!(looked.ended, ["other"]);
    assert_eq!(rules.kept[&7].since_ms, 1000 + REVERTED_MS);
}

#[test]
fn resume_ends_suspensions_of_rules_that_are_not_in_force() {
    let mut rules = suspended_rules();
    rules.adopt(None, BTreeMap::new());
    assert!(rules.resume(2000).is_empty());
    rules.adopt(Some(policy()), BTreeMap::new());
    assert!(rules.suspended(2000, true).is_empty());
    assert_eq!(suspended_rules().resume(2000), ["other"]);
}

#[test]
fn what_cannot_be_compared_is_said() {
    let why = |rules: &Rules, name: &str| rules.view(name, Scope::All, 0, 0).unwrap_err();
    let none = why(&Rules::default(), "x");
    assert!(none.contains("no policy is in force"), "{none}");
    let mut many = policy();
    for key in 100..120 {
        many.rules
            .push(rule(&format!("r{key}"), Some((HALF, 4, key))));
    }
    let rules = rules(many);
    assert!(why(&rules, "rest").contains("has no share"));
    assert!(why(&rules, "r119").contains("only the first 16"));
    let unknown = why(&rules, "x");
    assert!(
        unknown.contains("expected one with a share: twenty, forty, other, r100"),
        "{unknown}"
    );
}
