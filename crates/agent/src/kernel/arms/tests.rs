use super::*;

fn specs(names: &[&str]) -> Vec<ArmSpec> {
    names
        .iter()
        .map(|name| ArmSpec {
            name: (*name).to_string(),
            needs_ecn: *name == "dctcp",
        })
        .collect()
}

#[test]
fn numbers_are_stable_and_the_gone_are_not_allowed() {
    let first = ArmTable::layout(
        Mode::Thalweg,
        &ArmTable::default(),
        &specs(&["reno", "bbr"]),
        &[],
    );
    let second = ArmTable::layout(
        Mode::Thalweg,
        &first.unwrap(),
        &specs(&["cubic", "bbr"]),
        &[],
    );
    let table = second.unwrap();
    assert_eq!(table.index("reno"), Some(0));
    assert_eq!(table.index("bbr"), Some(1));
    assert_eq!(table.index("cubic"), Some(2));
    assert_eq!(table.allowed(Mode::Thalweg, false), 0b110);
}

#[test]
fn an_arm_that_the_kernel_does_not_have_gets_another_chance() {
    let offered = specs(&["reno", "bbr"]);
    let mut table = ArmTable::layout(Mode::Thalweg, &ArmTable::default(), &offered, &[]).unwrap();
    let bbr = table.slots[1].as_mut().unwrap();
    (bbr.refused_errno, bbr.refusals) = (-libc::ENOENT, 3);
    assert_eq!(table.allowed(Mode::Thalweg, false), 0b01);
    table.forgive();
    assert_eq!(table.allowed(Mode::Thalweg, false), 0b11);
    assert_eq!(table.slots[1].as_ref().unwrap().refusals, 3);
}

#[test]
fn arms_that_need_ecn_wait_for_it() {
    let table = ArmTable::layout(
        Mode::Thalweg,
        &ArmTable::default(),
        &specs(&["cubic", "dctcp"]),
        &[],
    );
    let table = table.unwrap();
    assert_eq!(table.allowed(Mode::Thalweg, false), 0b01);
    assert_eq!(table.allowed(Mode::Thalweg, true), 0b11);
}

#[test]
fn a_refused_arm_comes_back_only_when_it_appears_anew() {
    // The kernel's ENOTSUPP, which user space lacks.
    let refused = -524;
    let mut table =
        ArmTable::layout(Mode::Thalweg, &ArmTable::default(), &specs(&["bbr"]), &[]).unwrap();
    table.slots[0].as_mut().unwrap().refused_errno = refused;
    let still = ArmTable::layout(Mode::Thalweg, &table, &specs(&["bbr"]), &[]).unwrap();
    assert_eq!(still.allowed(Mode::Thalweg, true), 0);
    let gone = ArmTable::layout(Mode::Thalweg, &still, &[], &[]).unwrap();
    let back = ArmTable::layout(Mode::Thalweg, &gone, &specs(&["bbr"]), &[]).unwrap();
    assert_eq!(back.allowed(Mode::Thalweg, true), 1);
}

#[test]
fn an_arm_that_was_gone_for_a_moment_is_not_given_up() {
    let mut table =
        ArmTable::layout(Mode::Thalweg, &ArmTable::default(), &specs(&["bbr"]), &[]).unwrap();
    table.slots[0].as_mut().unwrap().refused_errno = -libc::ENOENT;
    let next = ArmTable::layout(Mode::Thalweg, &table, &specs(&["bbr"]), &[]).unwrap();
    assert_eq!(next.allowed(Mode::Thalweg, true), 1);
}

#[test]
fn classic_keeps_its_four_arms_whatever_the_kernel_has() {
    let table = ArmTable::layout(
        Mode::Classic,
        &ArmTable::default(),
        &specs(&["reno", "bbr"]),
        &[],
    )
    .unwrap();
    assert_eq!(table.index("bbr"), Some(1));
    assert_eq!(table.index("htcp"), Some(2));
    assert_eq!(table.index("reno"), Some(4));
    assert_eq!(table.allowed(Mode::Classic, false), 0xf);
}

#[test]
fn arms_that_are_remembered_take_what_is_free_and_are_not_allowed() {
    let mut table = ArmTable::layout(
        Mode::Thalweg,
        &ArmTable::default(),
        &specs(&["cubic", "reno"]),
        &[],
    )
    .unwrap();
    let names: Vec<String> = (0..20).map(|i| format!("cc{i}")).collect();
    table.remember(Mode::Thalweg, &["reno".to_string()]);
    table.remember(Mode::Thalweg, &names);
    assert_eq!(table.index("reno"), Some(1));
    assert_eq!(table.name(2), Some("cc0"));
    assert_eq!(table.entries().count(), MAX_ARMS);
    assert_eq!(table.allowed(Mode::Thalweg, true), 0b11);
    // A new arm gets its slot.
    let came = ArmTable::layout(Mode::Thalweg, &table, &specs(&["cubic", "cc0"]), &[]).unwrap();
    assert_eq!(came.allowed(Mode::Thalweg, true), 0b101);
}

#[test]
fn a_gone_arm_gives_its_slot_to_one_that_needs_it() {
    let names: Vec<String> = (0..16).map(|i| format!("cc{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let full = ArmTable::layout(Mode::Thalweg, &ArmTable::default(), &specs(&names), &[]).unwrap();
    let wanted = specs(&["cc1", "new", "newer"]);
    assert_eq!(full.gone(Mode::Thalweg, &wanted).len(), 15);
    let next = ArmTable::layout(Mode::Thalweg, &full, &wanted, &[7]).unwrap();
    assert_eq!(next.index("new"), Some(7));
    assert_eq!((next.index("cc7"), next.index("newer")), (None, None));
    assert_eq!(next.index("cc1"), Some(1));
}

#[test]
fn a_seventeenth_arm_is_an_error() {
    let names: Vec<String> = (0..17).map(|i| format!("cc{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert!(ArmTable::layout(Mode::Thalweg, &ArmTable::default(), &specs(&names), &[]).is_err());
}

#[test]
fn the_table_survives_the_kernel_form() {
    let table = ArmTable::layout(
        Mode::Thalweg,
        &ArmTable::default(),
        &specs(&["bbr", "dctcp"]),
        &[],
    )
    .unwrap();
    let raw = table.to_raw(Mode::Thalweg).unwrap();
    assert_eq!((raw.allowed, raw.allowed_ecn), (0b01, 0b11));
    assert_eq!(
        raw.arms[1].flags,
        raw::THALWEG_ARM_PRESENT | raw::THALWEG_ARM_NEEDS_ECN
    );
    assert_eq!(arm_name(&raw.arms[0].name), "bbr");
}
