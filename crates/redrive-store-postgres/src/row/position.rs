//! The position of a row in its table, which finds it without an index.

use std::error::Error;

use bytes::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

/// The position of a row: block and number. Only for rows that a transaction has just read. Once a row is gone, another one may get its
/// position.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowPosition([u8; 6]);

impl<'a> FromSql<'a> for RowPosition {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(raw.try_into()?))
    }

    accepts!(TID);
}

impl ToSql for RowPosition {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    accepts!(TID);
    to_sql_checked!();
}
