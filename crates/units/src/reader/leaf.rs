//! One value, in the form that its type's `Deserialize` expects.

use std::fmt;

use serde::de::{self, DeserializeOwned, Deserializer, IntoDeserializer, Unexpected, Visitor};
use serde::forward_to_deserialize_any;
use toml::de::DeValue;

use super::{any_number, whole_number};
use crate::near::nearest_word;

/// Expectation of a type.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Expected(String);

impl de::Error for Expected {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self(expected.to_string())
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self(expected.to_string())
    }

    fn unknown_variant(found: &str, words: &'static [&'static str]) -> Self {
        let all: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
        let mut expected = all.join(" or ");
        if let Some(near) = nearest_word(found, words.iter().copied()) {
            expected += &format!("; perhaps \"{near}\"");
        }
        Self(expected)
    }
}

/// A value, or none if it is absent.
struct Leaf<'v, 'd>(Option<&'v DeValue<'d>>);

impl<'de> Deserializer<'de> for Leaf<'_, '_> {
    type Error = Expected;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Expected> {
        let integer = self.0.and_then(whole_number);
        match (self.0, integer) {
            (Some(DeValue::String(text)), _) => visitor.visit_str(text),
            (Some(DeValue::Boolean(value)), _) => visitor.visit_bool(*value),
            (_, Some(integer)) => visitor.visit_i64(integer),
            (value, _) => match value.and_then(any_number) {
                Some(number) => visitor.visit_f64(number),
                None => Err(de::Error::invalid_type(Unexpected::Unit, &visitor)),
            },
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        words: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Expected> {
        match self.0 {
            Some(DeValue::String(text)) => visitor.visit_enum((**text).into_deserializer()),
            _ => Err(de::Error::unknown_variant("", words)),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// The value, or the expected form.
pub(super) fn read_value<T: DeserializeOwned>(value: &DeValue<'_>) -> Result<T, String> {
    T::deserialize(Leaf(Some(value))).map_err(|Expected(expected)| expected)
}

/// The form that a type expects, in words.
pub fn expected_form<T: DeserializeOwned>() -> String {
    match T::deserialize(Leaf(None)) {
        Ok(_) => "a value".to_owned(),
        Err(Expected(expected)) => expected,
    }
}
