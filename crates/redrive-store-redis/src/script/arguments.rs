//! Writes the arguments of scripts.

use std::fmt;

use redrive_core::{JobId, Lease};

use crate::inner::Inner;

/// The arguments of a script, in the order in which it reads them.
#[derive(Debug, Clone)]
pub(crate) struct Arguments(pub(crate) Vec<Vec<u8>>);

impl Arguments {
    /// No arguments, for a script that does not read the time.
    pub(crate) fn none() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0.push(bytes.to_vec());
    }

    pub(crate) fn text(&mut self, text: impl fmt::Display) {
        self.0.push(text.to_string().into_bytes());
    }

    pub(crate) fn count(&mut self, count: usize) {
        self.text(count);
    }

    pub(crate) fn id(&mut self, id: JobId) {
        self.text(id.0.simple());
    }

    /// An id, or an empty text.
    pub(crate) fn optional_id(&mut self, id: Option<JobId>) {
        self.text(id.map(|id| id.0.simple().to_string()).unwrap_or_default());
    }

    /// The number of ids, then the ids.
    pub(crate) fn ids(&mut self, ids: &[JobId]) {
        self.count(ids.len());
        ids.iter().for_each(|id| self.id(*id));
    }

    pub(crate) fn lease(&mut self, inner: &Inner, lease: Lease) {
        self.id(lease.id);
        self.text(lease.epoch);
        self.text(inner.claim_number(lease));
    }

    /// The number of fields, then each name and value.
    pub(crate) fn fields(&mut self, fields: Fields) {
        self.count(fields.0.len());
        self.push_fields(fields);
    }

    /// The number of names and values together, then each name and value.
    pub(crate) fn flat_fields(&mut self, fields: Fields) {
        self.count(2 * fields.0.len());
        self.push_fields(fields);
    }

    fn push_fields(&mut self, fields: Fields) {
        for (field, value) in fields.0 {
            self.0.push(field.as_bytes().to_vec());
            self.0.push(value);
        }
    }
}

/// Fields of a row, by name. A field without a value is left out.
#[derive(Debug, Default)]
pub(crate) struct Fields(Vec<(&'static str, Vec<u8>)>);

impl Fields {
    pub(crate) fn bytes(&mut self, field: &'static str, value: Option<&[u8]>) {
        self.0.extend(value.map(|value| (field, value.to_vec())));
    }

    pub(crate) fn text(&mut self, field: &'static str, value: Option<impl fmt::Display>) {
        self.0.extend(value.map(|value| (field, value.to_string().into_bytes())));
    }
}
