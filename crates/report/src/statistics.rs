//! Statistics, each defined once: what scenario files, documents and pages call it, and what it is.

/// Writes out an enum of statistics. A row is its name in Rust, its key in files and documents, a
/// definition of the type that stands behind the enum's name, and what it is, for every reader.
///
/// The enum has `ALL`, in the order of the rows, `key`, `description`, and privately `definition`.
#[macro_export]
macro_rules! statistics {
    (
        $(#[$attribute:meta])*
        $name:ident: $type:ty;
        $($variant:ident, $key:literal, $definition:expr, $description:literal;)*
    ) => {
        $(#[$attribute])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord,
            serde::Serialize, serde::Deserialize,
        )]
        #[serde(rename_all = "kebab-case")]
        pub enum $name {
            $(#[doc = $description] $variant,)*
        }

        impl $name {
            /// All of them, in the order in which they are shown.
            pub const ALL: [Self; [$($key),*].len()] = [$(Self::$variant),*];

            /// Its name in scenario files and documents.
            pub const fn key(self) -> &'static str {
                match self {
                    $(Self::$variant => $key,)*
                }
            }

            /// What it is.
            pub const fn description(self) -> &'static str {
                match self {
                    $(Self::$variant => $description,)*
                }
            }

            fn definition(self) -> $type {
                match self {
                    $(Self::$variant => $definition,)*
                }
            }
        }
    };
}
