//! A minimal Postgres client, which shows what a client sees of a fault.

use std::io::{Read as _, Result, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The longest time that an answer may take on a busy machine.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(30);

/// A connection to the database `redrive`.
pub(crate) struct Client(TcpStream);

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(WAIT_MAX))?;
        let mut client = Self(stream);
        let hello = b"\0\x03\0\0user\0redrive\0database\0redrive\0\0";
        client.send(b"", hello)?;
        client.answer()?;
        Ok(client)
    }

    /// Runs statements and returns the values of all rows.
    pub(crate) fn run(&mut self, sql: &str) -> Result<Vec<String>> {
        self.start(sql)?;
        self.answer()
    }

    /// Sends statements and does not wait for the answer.
    pub(crate) fn start(&mut self, sql: &str) -> Result<()> {
        self.send(b"Q", format!("{sql}\0").as_bytes())
    }

    fn send(&mut self, kind: &[u8], content: &[u8]) -> Result<()> {
        let length = u32::try_from(content.len() + 4).unwrap().to_be_bytes();
        self.0.write_all(&[kind, &length, content].concat())
    }

    /// Reads until the server is ready for the next query.
    fn answer(&mut self) -> Result<Vec<String>> {
        let mut values = Vec::new();
        loop {
            let mut head = [0; 5];
            self.0.read_exact(&mut head)?;
            let length = u32::from_be_bytes(head[1..].try_into().unwrap()) - 4;
            let mut content = vec![0; length as usize];
            self.0.read_exact(&mut content)?;
            match head[0] {
                b'D' => values.extend(row(&content)),
                b'E' => panic!("{}", String::from_utf8_lossy(&content)),
                b'Z' => return Ok(values),
                _ => {}
            }
        }
    }
}

/// Parses a row without nulls: the number of values in two bytes, then each value after its length in four bytes.
fn row(content: &[u8]) -> Vec<String> {
    let mut rest = &content[2..];
    let mut values = Vec::new();
    while let Some((length, more)) = rest.split_first_chunk::<4>() {
        let (value, more) = more.split_at(u32::from_be_bytes(*length) as usize);
        values.push(String::from_utf8(value.to_vec()).unwrap());
        rest = more;
    }
    values
}
