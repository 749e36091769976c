//! What a policy says.

/// How a policy names a network namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Namespace {
    /// A name of `ip netns`: `/run/netns/NAME`.
    Name(String),
    /// A file, such as `/proc/1/ns/net`.
    Path(String),
    /// Its cookie (`SO_NETNS_COOKIE`).
    Cookie(u64),
}

/// Rules in order of the file.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// Its name.
    pub name: String,
}
