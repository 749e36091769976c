//! Differences between policies.

use thalweg_policy::{Change, ChangedRule, Difference};

use crate::rules;

#[test]
fn rules_are_compared_by_what_they_say() {
    let before = rules(
        r#"
        [[rule]]
        name = "same"
        description = "one"
        match = { remote_port = 80 }
        set = { timeout_init = "10ms", sndbuf = "1024KiB" }
        [[rule]]
        name = "gone"
        never = true
        [[rule]]
        name = "other"
        match = { remote = "10.0.0.0/8", local_port = 1 }
        set = { mark = 1, tos = 2 }
        [[rule]]
        name = "last"
        set = { mark = 9 }
        "#,
    );
    let after = rules(
        r#"
        [[rule]]
        name = "last"
        set = { mark = 9 }
        [[rule]]
        name = "same"
        description = "two"
        [rule.match]
        remote_port = ["80-80"]
        [rule.set]
        sndbuf = "1MiB"
        timeout_init = "10000us"
        [[rule]]
        name = "new"
        set = { mark = 1 }
        [[rule]]
        name = "other"
        match = { remote = ["10.0.0.0/8", "::1"] }
        set = { mark = 2, tos = 2 }
        on.rto = { mark = 3 }
        "#,
    );
    let change = |what: &str, before: Option<&str>, after: Option<&str>| Change {
        what: what.to_owned(),
        before: before.map(str::to_owned),
        after: after.map(str::to_owned),
    };
    let difference = Difference::between(&before, &after);
    assert_eq!(
        difference,
        Difference {
            added: vec!["new".into()],
            removed: vec!["gone".into()],
            changed: vec![ChangedRule {
                name: "other".into(),
                changes: vec![
                    change("mark at connect, established", Some("1"), Some("2")),
                    change("mark at rto", None, Some("3")),
                    change("match.local_port", Some("1"), None),
                    change(
                        "match.remote",
                        Some("\"10.0.0.0/8\""),
                        Some("[\"10.0.0.0/8\", \"::1\"]")
                    ),
                ],
            }],
            moved: vec!["last".into()],
        }
    );
    assert!(Difference::between(&before, &before).is_empty());
    assert!(!difference.is_empty());
}
