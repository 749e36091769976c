//! Named points at which a test ends the process as kill -9 does. They exist only with the feature
//! `failpoints`, which no released binary has.

/// A named point. `FAILPOINTS=NAME=return` ends the process there; `NAME=2*off->return` at the
/// third pass. (The crate `fail` reads `FAILPOINTS`.)
#[macro_export]
macro_rules! fail_point {
    ($name:literal) => {
        #[cfg(feature = "failpoints")]
        $crate::faults::pass($name);
    };
}

#[cfg(feature = "failpoints")]
pub fn pass(name: &str) {
    static BEGUN: std::sync::Once = std::sync::Once::new();
    // Dropping it would remove the points.
    BEGUN.call_once(|| std::mem::forget(fail::FailScenario::setup()));
    fail::eval(name, |_| {
        let own = nix::unistd::Pid::this();
        // It cannot fail, and nothing after it runs.
        let _ = nix::sys::signal::kill(own, nix::sys::signal::Signal::SIGKILL);
    });
}
