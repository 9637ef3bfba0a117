//! Identifies the location of bodies, so that nodes can compare theirs.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The file that identifies a folder of bodies, independent of the path it is mounted at. Copy it together with the bodies.
pub const MARKER_FILE: &str = ".redrive-bodies-id";

/// A location of bodies. Two nodes with the same location id use the same bodies.
///
/// A folder has a random id in [`MARKER_FILE`], because the same path on two machines can be two folders. A bucket is identified by
/// its endpoint, name and prefix. Memory is a location of one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BodyLocation {
    /// Identifies the location.
    pub id: String,
    /// Its address on the node that wrote the record, for people.
    pub address: String,
}

impl BodyLocation {
    pub(super) fn folder(path: &Path) -> io::Result<Self> {
        let id = read_or_create_marker(path)?;
        Ok(Self { id: folder_id(id), address: format!("file:{}", path.display()) })
    }

    pub(super) fn bucket(endpoint: Option<&str>, bucket: &str, prefix: &str) -> Self {
        let address = format!("s3://{bucket}/{prefix}").trim_end_matches('/').to_owned();
        let endpoint = endpoint.map(without_login).map(|endpoint| endpoint.trim_end_matches('/').to_owned());
        let id = endpoint.map_or(address.clone(), |endpoint| format!("{address} at {endpoint}"));
        Self { id, address }
    }

    pub(super) fn memory() -> Self {
        Self { id: format!("memory:{}", Uuid::now_v7().simple()), address: "memory:".to_owned() }
    }

    /// Whether the folder at `path` is this location. It is not while nothing is mounted there.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        read_marker(path).is_ok_and(|id| folder_id(id) == self.id)
    }

    /// The location of a folder. Returns none if it has no marker file, and creates none.
    pub(super) fn find_folder(path: &Path) -> io::Result<Option<Self>> {
        match read_marker(path) {
            Ok(id) => Ok(Some(Self { id: folder_id(id), address: format!("file:{}", path.display()) })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl fmt::Display for BodyLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.id.starts_with(&self.address) {
            f.write_str(&self.id)
        } else {
            write!(f, "{} ({})", self.address, self.id)
        }
    }
}

fn folder_id(id: Uuid) -> String {
    format!("folder {}", id.simple())
}

/// Two processes that open a folder at once get the same id, because the file appears complete or not at all.
fn read_or_create_marker(folder: &Path) -> io::Result<Uuid> {
    match read_marker(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create_marker(folder)?;
            read_marker(folder)
        }
        read => read,
    }
}

fn read_marker(folder: &Path) -> io::Result<Uuid> {
    let text = fs::read_to_string(folder.join(MARKER_FILE))?;
    let damaged = |_| {
        let what =
            format!("{MARKER_FILE} does not contain an id; restore it from a backup or from another node");
        io::Error::new(io::ErrorKind::InvalidData, what)
    };
    Uuid::try_parse(text.trim()).map_err(damaged)
}

fn create_marker(folder: &Path) -> io::Result<()> {
    let id = Uuid::now_v7().simple().to_string();
    let draft = folder.join(format!("{MARKER_FILE}.{id}"));
    let written = OpenOptions::new().write(true).create_new(true).open(&draft).and_then(|mut file| {
        writeln!(file, "{id}")?;
        file.sync_all()
    });
    let linked = written.and_then(|()| fs::hard_link(&draft, folder.join(MARKER_FILE)));
    let _ = fs::remove_file(&draft);
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }
}

/// A URL without user and password.
fn without_login(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let host = rest.split('/').next().unwrap_or_default();
            let login = host.rfind('@').map_or(0, |end| end + 1);
            format!("{scheme}://{}", &rest[login..])
        }
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_keeps_its_id_when_it_is_moved() {
        let root = tempfile::tempdir().unwrap();
        let (one, two) = (root.path().join("one"), root.path().join("two"));
        fs::create_dir(&one).unwrap();
        fs::create_dir(&two).unwrap();
        assert_eq!(BodyLocation::find_folder(&one).unwrap(), None);
        let first = BodyLocation::folder(&one).unwrap();
        assert_eq!(
            (BodyLocation::folder(&one).unwrap(), BodyLocation::find_folder(&one).unwrap()),
            (first.clone(), Some(first.clone()))
        );
        assert_ne!(BodyLocation::folder(&two).unwrap().id, first.id);
        let moved = root.path().join("moved");
        fs::rename(&one, &moved).unwrap();
        assert_eq!(BodyLocation::folder(&moved).unwrap().id, first.id);
        assert!(first.is_at(&moved) && !first.is_at(&two) && !first.is_at(&one));
        fs::write(two.join(MARKER_FILE), "x").unwrap();
        assert!(BodyLocation::folder(&two).unwrap_err().to_string().contains(MARKER_FILE));
    }

    #[test]
    fn a_bucket_is_identified_by_endpoint_name_and_prefix_without_a_password() {
        let place = |endpoint, prefix| BodyLocation::bucket(endpoint, "b", prefix);
        let own = place(Some("https://me:secret@store:9000/"), "x");
        assert_eq!(own.to_string(), "s3://b/x at https://store:9000");
        assert_eq!(own, place(Some("https://store:9000"), "x"));
        assert_eq!(place(None, "").to_string(), "s3://b");
        for other in [place(None, "x"), place(Some("https://store:9000"), "y")] {
            assert_ne!(other.id, own.id);
        }
        assert_ne!(BodyLocation::memory().id, BodyLocation::memory().id);
    }
}
