//! The arguments of a script.

use std::fmt;

use redrive_core::{JobId, Lease};

use crate::open::Inner;

/// The arguments of a script, which it reads one after the other.
#[derive(Debug, Clone)]
pub(crate) struct Arguments(pub(crate) Vec<Vec<u8>>);

impl Arguments {
    /// Those of a script that has no clock.
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

    pub(crate) fn lease(&mut self, inner: &Inner, lease: Lease) {
        self.id(lease.id);
        self.text(lease.epoch);
        self.text(inner.claim_of(lease));
    }

    /// A field and its value, if it has one.
    pub(crate) fn extend(&mut self, fields: Fields) {
        self.count(fields.0.len());
        for (field, value) in fields.0 {
            self.0.push(field.as_bytes().to_vec());
            self.0.push(value);
        }
    }
}

impl Arguments {
    /// All fields of a row, as a list.
    pub(crate) fn flat(&mut self, fields: Fields) {
        self.count(2 * fields.0.len());
        for (field, value) in fields.0 {
            self.0.push(field.as_bytes().to_vec());
            self.0.push(value);
        }
    }
}

/// Fields of a row by name.
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
