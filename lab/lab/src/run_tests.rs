use super::*;

#[test]
fn rounds_rotate_and_references_may_be_rare() {
    let modes = [Mode::Baseline, Mode::Thalweg, Mode::Fixed("bbr".into())];
    let turns = schedule_turns(&modes, 4, 2);
    let order: Vec<(u32, usize)> = turns.iter().map(|turn| (turn.round, turn.mode)).collect();
    assert_eq!(
        order,
        [
            (0, 0),
            (0, 1),
            (0, 2),
            (1, 1),
            (2, 2),
            (2, 0),
            (2, 1),
            (3, 1)
        ]
    );
    assert_eq!(schedule_turns(&modes, 4, 1).len(), 12);
    // A policy does not learn, so it has the turns of a reference.
    let modes = [Mode::Policy("clamp".into()), Mode::Thalweg];
    let turns = schedule_turns(&modes, 3, 2);
    let order: Vec<(u32, usize)> = turns.iter().map(|turn| (turn.round, turn.mode)).collect();
    assert_eq!(order, [(0, 0), (0, 1), (1, 1), (2, 0), (2, 1)]);
}

#[test]
fn contradictions_are_refused_before_anything_is_done() {
    let file = vec![PathBuf::from("/nonexistent.toml")];
    for options in [
        Options::default(),
        Options {
            scenarios: file.clone(),
            modes: vec![],
            ..Options::default()
        },
        Options {
            scenarios: file.clone(),
            reference_every: 0,
            ..Options::default()
        },
        Options {
            scenarios: file.clone(),
            connections: Some(0),
            ..Options::default()
        },
    ] {
        assert!(
            matches!(run_scenarios(&options), Err(Error::Options(_))),
            "{options:?}"
        );
    }
    let options = Options {
        scenarios: file,
        ..Options::default()
    };
    assert!(matches!(run_scenarios(&options), Err(Error::Read(_))));
}
