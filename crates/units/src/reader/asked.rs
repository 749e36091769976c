//! What a reader asks for: its keys and the forms of their values, as a JSON Schema.
//!
//! The reader runs over an empty text. Each table that it asks for is there and empty, each list of
//! tables has one. Where keys depend on the table's `kind`, it runs once for each.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use serde::de::{self, DeserializeOwned, Deserializer, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Value, json};
use toml::de::{DeTable, DeValue};

use super::leaf::Expected;
use super::{Document, Reader, Table};
use crate::schema;

/// The schema of what `read` asks of the root table.
pub fn schema_of(read: impl Fn(&mut Table<'_>)) -> Value {
    asked_of(|document| {
        let reader = Reader::new(document, 0..0);
        if let Some(mut root) = reader.root() {
            read(&mut root);
        }
    })
}

/// The schema of what `read` asks of a document.
pub fn asked_of(read: impl Fn(&Document<'_>)) -> Value {
    let record = RefCell::new(Record::default());
    loop {
        read(&Document::blank_document(Path::new(""), &record));
        let mut record = record.borrow_mut();
        record.choice = record.next();
        if record.choice.is_none() {
            return record.table_schema("");
        }
    }
}

/// Everything asked so far.
#[derive(Default)]
pub(super) struct Record {
    /// By the tables' dotted names.
    tables: BTreeMap<String, TableRecord>,
    /// The table and its kind to answer with in this run.
    choice: Option<(String, String)>,
}

/// Keys that readers asked one table for.
#[derive(Default)]
struct TableRecord {
    /// The words of `kind`, and the default among them.
    kinds: Vec<String>,
    default: Option<String>,
    /// The keys of each kind; of none where there are no kinds.
    keys: BTreeMap<Option<String>, BTreeMap<String, KeyRecord>>,
    /// The pattern and the form of all other keys.
    others: Option<(String, Value)>,
    at_least_one: bool,
}

#[derive(Clone)]
struct KeyRecord {
    form: Form,
    is_required: bool,
}

/// The form of a value. Tables are named.
#[derive(Clone)]
pub(super) enum Form {
    Value(Value),
    Table(String),
    Tables(String),
}

impl Record {
    /// Takes down a key. Later words about the same key win.
    pub(super) fn record_key(&mut self, table: &str, kind: Option<&str>, key: &str, form: Form) {
        let asked = self.tables.entry(table.to_owned()).or_default();
        let keys = asked.keys.entry(kind.map(str::to_owned)).or_default();
        let known = keys.get(key).is_some_and(|known| known.is_required);
        let key = (
            key.to_owned(),
            KeyRecord {
                form,
                is_required: known,
            },
        );
        keys.insert(key.0, key.1);
    }

    pub(super) fn record_required(&mut self, table: &str, kind: Option<&str>, key: &str) {
        let asked = self.tables.entry(table.to_owned()).or_default();
        if let Some(keys) = asked.keys.get_mut(&kind.map(str::to_owned))
            && let Some(key) = keys.get_mut(key)
        {
            key.is_required = true;
        }
    }

    pub(super) fn record_others(&mut self, table: &str, pattern: &str, form: Value) {
        let asked = self.tables.entry(table.to_owned()).or_default();
        asked.others = Some((pattern.to_owned(), form));
        asked.keys.entry(None).or_default();
    }

    pub(super) fn at_least_one(&mut self, table: &str) {
        self.tables
            .entry(table.to_owned())
            .or_default()
            .at_least_one = true;
    }

    /// The kind of a table in this run.
    pub(super) fn record_kind(
        &mut self,
        table: &str,
        words: Vec<String>,
        default: Option<&str>,
    ) -> String {
        let first = default.or(words.first().map(String::as_str));
        let first = first.unwrap_or_default().to_owned();
        let chosen = match &self.choice {
            Some((of, chosen)) if of == table => chosen.clone(),
            _ => first,
        };
        let asked = self.tables.entry(table.to_owned()).or_default();
        asked.kinds = words;
        asked.default = default.map(str::to_owned);
        asked.keys.entry(Some(chosen.clone())).or_default();
        chosen
    }

    /// A kind that no run has had yet.
    fn next(&self) -> Option<(String, String)> {
        self.tables.iter().find_map(|(name, asked)| {
            let new = |kind: &&String| !asked.keys.contains_key(&Some((*kind).clone()));
            let kind = asked.kinds.iter().find(new)?;
            Some((name.clone(), kind.clone()))
        })
    }

    fn table_schema(&self, name: &str) -> Value {
        let Some(asked) = self.tables.get(name) else {
            return schema::table([], &[]);
        };
        let kinds: Vec<Value> = asked
            .keys
            .iter()
            .map(|(kind, keys)| self.of_kind(asked, kind.as_deref(), keys))
            .collect();
        match <[Value; 1]>::try_from(kinds) {
            Ok([only]) => only,
            Err(kinds) => schema::any_of(kinds),
        }
    }

    fn of_kind(
        &self,
        asked: &TableRecord,
        kind: Option<&str>,
        keys: &BTreeMap<String, KeyRecord>,
    ) -> Value {
        let forms = keys.iter().map(|(name, key)| {
            let form = match &key.form {
                Form::Value(value) => value.clone(),
                Form::Table(table) => self.table_schema(table),
                Form::Tables(table) => {
                    let least = usize::from(key.is_required);
                    schema::list(self.table_schema(table), least..=usize::MAX, false)
                }
            };
            (name.clone(), form)
        });
        let kind_form = kind.map(|kind| ("kind".to_owned(), json!({ "const": kind })));
        let required = keys.iter().filter(|(_, key)| key.is_required);
        let mut required: Vec<&str> = required.map(|(name, _)| name.as_str()).collect();
        if kind.is_some() && kind != asked.default.as_deref() {
            required.push("kind");
        }
        let mut table = schema::table(forms.chain(kind_form), &required);
        if let Some((pattern, form)) = &asked.others {
            table["patternProperties"] = json!({ pattern: form });
        }
        if asked.at_least_one {
            table["minProperties"] = json!(1);
        }
        table
    }
}

/// Declarations by readers about their keys. Outside [`schema_of`] they have no effect and cost
/// nothing.
impl Table<'_> {
    fn record_with(&self, take_down: impl FnOnce(&mut Record, &str, Option<&str>)) {
        if let Some(record) = self.reader.document.record {
            take_down(
                &mut record.borrow_mut(),
                &self.key(""),
                self.kind.as_deref(),
            );
        }
    }

    /// Tells the form of a key.
    pub fn declare_key(&self, key: &str, form: impl FnOnce() -> Value) {
        self.record_with(|record, table, kind| {
            record.record_key(table, kind, key, Form::Value(form()))
        });
    }

    /// Tells the form of a key, if it is one of this table.
    pub fn declare_key_if(&self, key: &str, form: impl FnOnce() -> Option<Value>) {
        self.record_with(|record, table, kind| {
            if let Some(form) = form() {
                record.record_key(table, kind, key, Form::Value(form));
            }
        });
    }

    /// The table that stands for a list of tables, where a reader is asked for its keys.
    pub fn asked_tables(&mut self, key: &'static str) -> Vec<Self> {
        let tables = self.blank_table(key, true).into_iter().collect();
        self.declare_required(key);
        tables
    }

    /// Tells the form of all keys that are not named.
    pub fn declare_others(&self, pattern: &str, form: impl FnOnce() -> Value) {
        self.record_with(|record, table, _| record.record_others(table, pattern, form()));
    }

    /// Tells that a key is required.
    pub fn declare_required(&self, key: &str) {
        self.record_with(|record, table, kind| record.record_required(table, kind, key));
    }

    /// Tells that the table has at least one key.
    pub fn declare_not_empty(&self) {
        self.record_with(|record, table, _| record.at_least_one(table));
    }

    /// The table that stands for a table of this name, or for a list of them.
    pub(super) fn blank_table(&self, key: &str, is_list: bool) -> Option<Self> {
        self.reader.document.record?;
        let (label, path) = match is_list {
            true => (format!("{key} 1: "), String::new()),
            false => (self.label.clone(), format!("{}{key}.", self.path)),
        };
        let table = self.reader.table(label, path, DeTable::new(), self.at);
        let name = table.key("");
        self.record_with(|record, owner, kind| {
            let form = if is_list { Form::Tables } else { Form::Table };
            record.record_key(owner, kind, key, form(name));
        });
        Some(table)
    }

    /// The kind to go on with.
    pub(super) fn asked_kind<T: DeserializeOwned>(&mut self, default: Option<&str>) -> Option<T> {
        let record = self.reader.document.record?;
        let form = form_of::<T>();
        let words = form["enum"].as_array().into_iter().flatten();
        let words = words.filter_map(Value::as_str).map(str::to_owned).collect();
        let kind = record
            .borrow_mut()
            .record_kind(&self.key(""), words, default);
        self.kind = Some(kind.clone());
        super::leaf::read_value(&DeValue::String(kind.into())).ok()
    }
}

/// The form that a type's `Deserialize` asks for.
pub(super) fn form_of<T: DeserializeOwned>() -> Value {
    let mut form = json!({});
    // The visitor never gets a value.
    let _ = T::deserialize(Ask(&mut form));
    form
}

/// Takes down what a type asks for, and fails.
struct Ask<'f>(&'f mut Value);

impl Ask<'_> {
    fn answer_with<T>(self, form: Value) -> Result<T, Expected> {
        *self.0 = form;
        Err(de::Error::custom("a form"))
    }
}

/// Methods for whole numbers of a type.
macro_rules! whole {
    ($($method:ident: $type:ty),*) => {
        $(fn $method<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Expected> {
            self.answer_with(schema::whole(<$type>::MIN..=<$type>::MAX))
        })*
    };
}

impl<'de> Deserializer<'de> for Ask<'_> {
    type Error = Expected;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Expected> {
        self.answer_with(json!({}))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Expected> {
        self.answer_with(schema::boolean())
    }

    whole! {
        deserialize_i8: i8, deserialize_i16: i16, deserialize_i32: i32, deserialize_i64: i64,
        deserialize_u8: u8, deserialize_u16: u16, deserialize_u32: u32, deserialize_u64: u64
    }

    fn deserialize_f64<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Expected> {
        self.answer_with(schema::any_number())
    }

    fn deserialize_str<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Expected> {
        self.answer_with(schema::text())
    }

    fn deserialize_string<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Expected> {
        self.answer_with(schema::text())
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        words: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Expected> {
        self.answer_with(schema::words(words))
    }

    /// The name of a quantity is its pattern.
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Expected> {
        let text = schema::pattern(name);
        match visitor.visit_i64::<Expected>(1) {
            Ok(_) => self.answer_with(schema::any_of([
                json!({ "type": "integer", "minimum": 0 }),
                text,
            ])),
            Err(_) => self.answer_with(text),
        }
    }

    forward_to_deserialize_any! {
        i128 u128 f32 char bytes byte_buf option unit unit_struct seq tuple tuple_struct map struct
        identifier ignored_any
    }
}
