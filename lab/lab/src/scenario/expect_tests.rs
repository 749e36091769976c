use super::*;
use crate::scenario::tests::{faults_are, parse};

#[test]
fn words_name_bound_and_reference() {
    let expectation = Expectation {
        mode: Mode::Thalweg,
        statistic: Statistic::Mean,
        arm: None,
        class: None,
        host: None,
        relative_to: Some(Reference::BestFixed),
        at_least: Some(0.75),
        at_most: None,
    };
    assert_eq!(
        expectation.to_string(),
        "thalweg: mean goodput at least 0.75 × that of best-fixed"
    );
}

#[test]
fn expectations_name_arms_classes_times_and_negative_bounds() {
    let scenario = parse(
        "name = \"x\"\n[traffic]\nkind = \"incast\"\n\
         [[expect]]\nmode = \"thalweg\"\nstatistic = \"fct-p99\"\nclass = \"rpc-10kb\"\nat_most = \"5ms\"\n\
         [[expect]]\nmode = \"thalweg\"\nstatistic = \"arm-share\"\narm = \"bbr\"\nat_least = 0.5\n\
         [[expect]]\nmode = \"thalweg\"\nstatistic = \"harm\"\nat_least = -0.5\n",
    )
    .unwrap();
    assert_eq!(scenario.expect[0].at_most, Some(5_000.0));
    assert_eq!(scenario.expect[0].class.as_deref(), Some("rpc-10kb"));
    assert_eq!(scenario.expect[1].arm.as_deref(), Some("bbr"));
    assert_eq!(scenario.expect[2].at_least, Some(-0.5));
    assert_eq!(
        scenario.expect[0].to_string(),
        "thalweg: 99th percentile of flow-completion time (of rpc-10kb) at most 5.00 ms"
    );
}

#[test]
fn faults_of_expectations_have_their_place() {
    faults_are(
        "[[expect]]\nmode = \"thalweg\"\n",
        &[
            (
                "statistic = \"median\"",
                (2, 1),
                "expected `at_least` or `at_most`",
            ),
            (
                "statistic = \"middle\"\nat_least = 1",
                (4, 13),
                "found the string \"middle\", expected \"median\" or ",
            ),
            (
                "statistic = \"median\"\nat_least = 1",
                (5, 12),
                "expected a rate from",
            ),
            (
                "statistic = \"loss\"\nat_least = \"1mbit\"",
                (5, 12),
                "expected a number",
            ),
            (
                "statistic = \"loss\"\nat_least = 0.2\nat_most = 0.1",
                (5, 12),
                "no value is within both bounds",
            ),
            (
                "statistic = \"loss\"\nat_least = -1",
                (5, 12),
                "not negative",
            ),
            (
                "statistic = \"loss\"\nat_least = nan",
                (5, 12),
                "not negative",
            ),
            (
                "statistic = \"loss\"\nat_most = 1\nrelative_to = \"baseline\"",
                (6, 15),
                "expected goodput, times, retransmissions, fairness or shares",
            ),
            (
                "statistic = \"mean\"\nat_most = 1\nrelative_to = \"fixed\"",
                (6, 15),
                "stands for several",
            ),
            (
                "statistic = \"fct-p99\"\nat_most = 5",
                (5, 11),
                "expected a time from",
            ),
            (
                "statistic = \"fct-p99\"\nat_most = \"5mbit\"",
                (5, 11),
                "expected a time from",
            ),
            (
                "statistic = \"arm-share\"\nat_least = 0.5",
                (2, 1),
                "expect 1: arm: found nothing",
            ),
            (
                "statistic = \"jain\"\narm = \"bbr\"\nat_least = 0.5",
                (5, 7),
                "expected it beside arm-share only",
            ),
            (
                "statistic = \"median\"\nclass = \"x\"\nat_least = \"1mbit\"",
                (5, 9),
                "no classes of flows",
            ),
        ],
    );
    faults_are(
        "[[expect]]\n",
        &[(
            "mode = \"best\"\nstatistic = \"mean\"\nat_most = \"1mbit\"",
            (3, 8),
            "fixed:ARM",
        )],
    );
}
