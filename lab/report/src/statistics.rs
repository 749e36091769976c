//! Statistics, each defined once: its name in scenario files, documents and pages, and its
//! description.

/// Generates an enum of statistics. A row has its name in Rust, its key in files and documents, a
/// definition, and a description for every reader. The type after the enum's name is that of the
/// definitions.
///
/// The enum has `ALL`, in the order of the rows, `key`, `description`, and a private `definition`.
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
            /// All statistics, in the order of display.
            pub const ALL: [Self; [$($key),*].len()] = [$(Self::$variant),*];

            /// Name in scenario files and documents.
            pub const fn key(self) -> &'static str {
                match self {
                    $(Self::$variant => $key,)*
                }
            }

            /// Description for readers.
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
