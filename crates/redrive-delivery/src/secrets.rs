//! Signing secrets, kept as encrypted records and never shown again.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use redrive_bodies::{folder, hex};
use redrive_core::records::{Change, Expect, Record, Records, Written};
use redrive_core::{Invalid, JobId, StoreError, Tenant, Timestamp};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::sign::SigningSecret;

/// The kind of the records.
pub const KIND: &str = "signing-secret";
/// Bytes of a secret's name.
pub const SECRET_NAME_BYTES_MAX: usize = 64;

const KEY_BYTES: usize = 32;
const FINGERPRINT_BYTES: usize = 16;
const PAGE_ITEMS: usize = 100;
/// Tries of a compare-and-set before it is given up as contended.
const TRIES: usize = 50;

/// The key that secrets are encrypted with. It is wiped from memory, and `Debug` does not show it.
#[derive(Clone)]
pub struct SecretKey(Zeroizing<[u8; KEY_BYTES]>);

impl SecretKey {
    /// Reads the base64 of 32 bytes.
    pub fn from_base64(text: &str) -> Result<Self, KeyError> {
        let bytes = STANDARD.decode(text.trim()).map(Zeroizing::new).map_err(|_| KeyError::Malformed)?;
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        if bytes.len() != KEY_BYTES {
            return Err(KeyError::Malformed);
        }
        key.copy_from_slice(&bytes);
        Ok(Self(key))
    }

    /// Reads the key in a file that only its owner can read; makes the file with a new key if there is none.
    ///
    /// Two processes that start at once end up with the same key: the file appears whole or not at all.
    pub fn load_or_create(path: &Path) -> Result<Self, KeyError> {
        match Self::load(path) {
            Err(KeyError::File(_, error)) if error.kind() == io::ErrorKind::NotFound => {
                create(path).map_err(|error| KeyError::File(path.to_owned(), error))?;
                Self::load(path)
            }
            loaded => loaded,
        }
    }

    /// Reads the key in a file that only its owner can read; none if there is no file.
    pub fn load_existing(path: &Path) -> Result<Option<Self>, KeyError> {
        match Self::load(path) {
            Ok(key) => Ok(Some(key)),
            Err(KeyError::File(_, error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Tells this key from others without giving it away: a MAC under it over a fixed text.
    pub fn fingerprint(&self) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &*self.0);
        let tag = hmac::sign(&key, b"redrive: fingerprint of the secrets key");
        hex(&tag.as_ref()[..FINGERPRINT_BYTES])
    }

    fn load(path: &Path) -> Result<Self, KeyError> {
        let failed = |error| KeyError::File(path.to_owned(), error);
        let mut file = File::open(path).map_err(failed)?;
        refuse_readable_by_others(&file, path)?;
        let mut text = Zeroizing::new(String::new());
        file.read_to_string(&mut text).map_err(failed)?;
        Self::from_base64(&text)
    }

    fn generate() -> Self {
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        fill(&mut *key);
        Self(key)
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(…)")
    }
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// It is not one.
    #[error("a secrets key is the base64 of 32 bytes; make one with `openssl rand -base64 32`")]
    Malformed,
    /// Others could have read it.
    #[error("{} can be read by others; run `chmod 600` on it, and replace the key if they may have seen it", .0.display())]
    Exposed(PathBuf),
    /// The file cannot be read or made.
    #[error("the secrets key in {} cannot be read or made", .0.display())]
    File(PathBuf, #[source] io::Error),
}

/// Keeps and gives out signing secrets, and encrypts the credentials among the headers of tasks.
pub struct Vault {
    key: LessSafeKey,
}

impl Vault {
    /// A vault under `key`.
    pub fn new(key: &SecretKey) -> Self {
        let key = UnboundKey::new(&CHACHA20_POLY1305, &*key.0).expect("a key of 32 bytes");
        Self { key: LessSafeKey::new(key) }
    }

    /// Makes a secret, or takes the one given, and shows it: the only time.
    pub async fn create(
        &self,
        records: &dyn Records,
        tenant: &Tenant,
        name: &str,
        given: Option<SigningSecret>,
        now: Timestamp,
    ) -> Result<Zeroizing<String>, VaultError> {
        let id = id(tenant, name)?;
        let secret = given.unwrap_or_else(SigningSecret::generate);
        let kept = Kept {
            created_at_ms: now.as_ms(),
            rotated_at_ms: None,
            current: self.seal(&id, &secret),
            previous: None,
        };
        match write(records, id, Expect::Absent, Some(&kept)).await? {
            Written::Done(_) => Ok(secret.reveal()),
            Written::Conflict(_) => Err(VaultError::Exists),
        }
    }

    /// Replaces a secret. The one before stays active beside it; an older one is dropped.
    pub async fn rotate(
        &self,
        records: &dyn Records,
        tenant: &Tenant,
        name: &str,
        given: Option<SigningSecret>,
        now: Timestamp,
    ) -> Result<Zeroizing<String>, VaultError> {
        let id = id(tenant, name)?;
        let secret = given.unwrap_or_else(SigningSecret::generate);
        let sealed = self.seal(&id, &secret);
        change(records, &id, |kept| {
            let previous = Some(kept.current);
            Kept { rotated_at_ms: Some(now.as_ms()), current: sealed.clone(), previous, ..kept }
        })
        .await?;
        Ok(secret.reveal())
    }

    /// Stops signing with the secret before the current one.
    pub async fn retire_previous(
        &self,
        records: &dyn Records,
        tenant: &Tenant,
        name: &str,
    ) -> Result<(), VaultError> {
        change(records, &id(tenant, name)?, |kept| Kept { previous: None, ..kept }).await
    }

    /// Removes a secret and the one before it.
    pub async fn remove(&self, records: &dyn Records, tenant: &Tenant, name: &str) -> Result<(), VaultError> {
        let id = id(tenant, name)?;
        read(records, &id).await?;
        write(records, id, Expect::Any, None).await?;
        Ok(())
    }

    /// A tenant's secrets by name, without what is secret.
    pub async fn names(&self, records: &dyn Records, tenant: &Tenant) -> Result<Vec<SecretInfo>, VaultError> {
        let prefix = format!("{}/", folder(tenant));
        let mut infos: Vec<SecretInfo> = vec![];
        let mut after = prefix.clone();
        loop {
            let page = records.scan(KIND, Some(&after), PAGE_ITEMS).await?;
            for record in &page {
                let Some(name) = record.id.strip_prefix(&prefix) else { return Ok(infos) };
                infos.push(parse(record)?.info(name));
            }
            match page.last() {
                Some(last) if page.len() == PAGE_ITEMS => after.clone_from(&last.id),
                Some(_) | None => return Ok(infos),
            }
        }
    }

    /// The active secrets to sign with, newest first.
    pub async fn keys_for(
        &self,
        records: &dyn Records,
        tenant: &Tenant,
        name: &str,
    ) -> Result<Vec<SigningSecret>, VaultError> {
        let id = id(tenant, name)?;
        let (kept, _) = read(records, &id).await?;
        std::iter::once(&kept.current).chain(&kept.previous).map(|sealed| self.unseal(&id, sealed)).collect()
    }

    /// Whether this key opens what is in a store; none when there is nothing to try it on.
    pub async fn opens(&self, records: &dyn Records) -> Result<Option<bool>, StoreError> {
        let first = records.scan(KIND, None, 1).await?.pop();
        let Some(record) = first else { return Ok(None) };
        let kept = parse(&record)?;
        Ok(Some(self.unseal(&record.id, &kept.current).is_ok()))
    }

    /// Encrypts the value of a task's header. Its tenant, its job and its name are bound in, so that nobody can move the
    /// ciphertext to another task or header.
    pub fn seal_header(&self, tenant: &Tenant, job: JobId, name: &str, value: &str) -> String {
        self.seal_bytes(&header_place(tenant, job, name), value.as_bytes())
    }

    /// Decrypts what [`Vault::seal_header`] encrypted.
    pub fn open_header(
        &self,
        tenant: &Tenant,
        job: JobId,
        name: &str,
        sealed: &str,
    ) -> Result<String, VaultError> {
        let opened = self.open_bytes(&header_place(tenant, job, name), sealed)?;
        String::from_utf8(opened.to_vec()).map_err(|_| VaultError::WrongKey)
    }

    /// Encrypts a short text for one tenant and one purpose, so that only this service can read it back.
    pub fn seal_text(&self, purpose: &str, tenant: &Tenant, text: &str) -> String {
        self.seal_bytes(&text_place(purpose, tenant), text.as_bytes())
    }

    /// Decrypts what [`Vault::seal_text`] encrypted.
    pub fn open_text(&self, purpose: &str, tenant: &Tenant, sealed: &str) -> Result<String, VaultError> {
        let opened = self.open_bytes(&text_place(purpose, tenant), sealed)?;
        String::from_utf8(opened.to_vec()).map_err(|_| VaultError::WrongKey)
    }

    /// The record's id is bound in, so that nobody can move a value to another name.
    fn seal(&self, id: &str, secret: &SigningSecret) -> String {
        self.seal_bytes(id, secret.as_bytes())
    }

    fn unseal(&self, id: &str, sealed: &str) -> Result<SigningSecret, VaultError> {
        SigningSecret::from_bytes(self.open_bytes(id, sealed)?).ok_or(VaultError::WrongKey)
    }

    /// The nonce, then the sealed bytes, in base64.
    fn seal_bytes(&self, place: &str, bytes: &[u8]) -> String {
        let mut nonce = [0; NONCE_LEN];
        fill(&mut nonce);
        let mut sealed = bytes.to_vec();
        self.key
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(place), &mut sealed)
            .expect("a short secret");
        STANDARD.encode([&nonce[..], &sealed].concat())
    }

    fn open_bytes(&self, place: &str, sealed: &str) -> Result<Zeroizing<Vec<u8>>, VaultError> {
        let mut bytes = STANDARD.decode(sealed).map(Zeroizing::new).map_err(|_| VaultError::WrongKey)?;
        let (nonce, sealed) = bytes.split_at_mut_checked(NONCE_LEN).ok_or(VaultError::WrongKey)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| VaultError::WrongKey)?;
        let opened =
            self.key.open_in_place(nonce, Aad::from(place), sealed).map_err(|_| VaultError::WrongKey)?;
        Ok(Zeroizing::new(opened.to_vec()))
    }
}

/// What the ciphertext of a header is bound to. A record's id never begins like this.
fn header_place(tenant: &Tenant, job: JobId, name: &str) -> String {
    format!("header\0{tenant}\0{job}\0{}", name.to_ascii_lowercase())
}

/// What the ciphertext of a text is bound to.
fn text_place(purpose: &str, tenant: &Tenant) -> String {
    format!("text\0{purpose}\0{tenant}")
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Vault(…)")
    }
}

/// What may be known of a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretInfo {
    /// Its name.
    pub name: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last replaced.
    pub rotated_at: Option<Timestamp>,
    /// Whether the one before is active too.
    pub has_previous: bool,
}

/// Why a secret could not be kept or given out.
#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    /// The name is taken.
    #[error("a signing secret of this name exists; rotate it instead")]
    Exists,
    /// There is none of this name.
    #[error("there is no signing secret of this name; create it first")]
    NotFound,
    /// It was encrypted with another key, or was tampered with.
    #[error(
        "the signing secret cannot be decrypted with the key of this node; start it with the key that the secret was made under, or remove the secret"
    )]
    WrongKey,
    /// Others kept changing it.
    #[error("the signing secret kept changing meanwhile; try again")]
    Contended,
    /// What was asked is not legal.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A record's content.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
    created_at_ms: i64,
    rotated_at_ms: Option<i64>,
    current: String,
    previous: Option<String>,
}

impl Kept {
    fn info(&self, name: &str) -> SecretInfo {
        SecretInfo {
            name: name.to_owned(),
            created_at: Timestamp::from_ms(self.created_at_ms),
            rotated_at: self.rotated_at_ms.map(Timestamp::from_ms),
            has_previous: self.previous.is_some(),
        }
    }
}

fn id(tenant: &Tenant, name: &str) -> Result<String, Invalid> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.len() > SECRET_NAME_BYTES_MAX || !name.bytes().all(legal) {
        return Err(Invalid::new(
            "signingSecret",
            format!(
                "must be from 1 to {SECRET_NAME_BYTES_MAX} letters, digits, dots, hyphens and underscores"
            ),
        ));
    }
    Ok(format!("{}/{name}", folder(tenant)))
}

async fn read(records: &dyn Records, id: &str) -> Result<(Kept, u64), VaultError> {
    let record = records.read(KIND, id).await?.ok_or(VaultError::NotFound)?;
    Ok((parse(&record)?, record.version))
}

fn parse(record: &Record) -> Result<Kept, StoreError> {
    serde_json::from_slice(&record.value)
        .map_err(|error| StoreError::Corrupt(format!("the record {KIND} {}: {error}", record.id)))
}

async fn change(
    records: &dyn Records,
    id: &str,
    mut with: impl FnMut(Kept) -> Kept,
) -> Result<(), VaultError> {
    for _ in 0..TRIES {
        let (kept, version) = read(records, id).await?;
        let kept = with(kept);
        if let Written::Done(_) = write(records, id.to_owned(), Expect::Version(version), Some(&kept)).await?
        {
            return Ok(());
        }
    }
    Err(VaultError::Contended)
}

async fn write(
    records: &dyn Records,
    id: String,
    expect: Expect,
    kept: Option<&Kept>,
) -> Result<Written, StoreError> {
    let value = kept.map(|kept| serde_json::to_vec(kept).expect("plain data"));
    records.write(Change { kind: KIND.into(), id, expect, value }).await
}

/// Writes a new key beside `path` and links it there: the link fails if another process was first, whose key stays.
fn create(path: &Path) -> io::Result<()> {
    let draft = path.with_extension(format!("{}.new", uuid::Uuid::now_v7().simple()));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options.open(&draft).and_then(|mut file| {
        let text = Zeroizing::new(STANDARD.encode(*SecretKey::generate().0));
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    let linked = written.and_then(|()| fs::hard_link(&draft, path));
    let _ = fs::remove_file(&draft);
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }
}

#[cfg(unix)]
fn refuse_readable_by_others(file: &File, path: &Path) -> Result<(), KeyError> {
    use std::os::unix::fs::PermissionsExt;
    let metadata = file.metadata().map_err(|error| KeyError::File(path.to_owned(), error))?;
    if metadata.permissions().mode() & 0o077 == 0 { Ok(()) } else { Err(KeyError::Exposed(path.to_owned())) }
}

#[cfg(not(unix))]
fn refuse_readable_by_others(_: &File, _: &Path) -> Result<(), KeyError> {
    Ok(())
}

fn fill(bytes: &mut [u8]) {
    SystemRandom::new().fill(bytes).expect("the system gives random bytes");
}

#[cfg(test)]
mod tests {
    use redrive_testkit::{ManualClock, ModelStore};

    use super::*;

    fn vault() -> Vault {
        Vault::new(&SecretKey(Zeroizing::new([7; KEY_BYTES])))
    }

    fn store() -> ModelStore {
        ModelStore::new(ManualClock::new())
    }

    fn tenant(name: &str) -> Tenant {
        Tenant::new(name).unwrap()
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_ms(ms)
    }

    async fn keys(store: &ModelStore, name: &str) -> Vec<String> {
        let keys = vault().keys_for(store, &tenant("t"), name).await.unwrap();
        keys.iter().map(|key| key.reveal().to_string()).collect()
    }

    #[test]
    fn a_fingerprint_tells_keys_apart_and_gives_none_away() {
        let key = |byte| SecretKey(Zeroizing::new([byte; KEY_BYTES]));
        assert_eq!(key(7).fingerprint(), key(7).fingerprint());
        assert_ne!(key(7).fingerprint(), key(8).fingerprint());
        assert_eq!(key(7).fingerprint().len(), 2 * FINGERPRINT_BYTES);
        assert!(!key(7).fingerprint().contains("0707"));
    }

    #[tokio::test]
    async fn a_key_that_does_not_open_what_is_there_is_told() {
        let (store, right) = (store(), vault());
        let wrong = Vault::new(&SecretKey(Zeroizing::new([8; KEY_BYTES])));
        assert_eq!(wrong.opens(&store).await.unwrap(), None, "there is nothing to open");
        right.create(&store, &tenant("t"), "hook", None, at(1)).await.unwrap();
        assert_eq!(right.opens(&store).await.unwrap(), Some(true));
        assert_eq!(wrong.opens(&store).await.unwrap(), Some(false));
    }

    #[tokio::test]
    async fn rotation_keeps_two_and_never_three() {
        let (store, vault, tenant) = (store(), vault(), tenant("t"));
        let first = vault.create(&store, &tenant, "hook", None, at(1)).await.unwrap();
        assert_eq!(keys(&store, "hook").await, [&**first]);
        let second = vault.rotate(&store, &tenant, "hook", None, at(2)).await.unwrap();
        assert_eq!(keys(&store, "hook").await, [&**second, &**first]);
        let given = SigningSecret::generate();
        let third = vault.rotate(&store, &tenant, "hook", Some(given.clone()), at(3)).await.unwrap();
        assert_eq!(third, given.reveal());
        assert_eq!(keys(&store, "hook").await, [&**third, &**second]);
        vault.retire_previous(&store, &tenant, "hook").await.unwrap();
        assert_eq!(keys(&store, "hook").await, [&**third]);
        let info = SecretInfo {
            name: "hook".into(),
            created_at: at(1),
            rotated_at: Some(at(3)),
            has_previous: false,
        };
        assert_eq!(vault.names(&store, &tenant).await.unwrap(), [info]);
        vault.remove(&store, &tenant, "hook").await.unwrap();
        assert!(matches!(vault.keys_for(&store, &tenant, "hook").await, Err(VaultError::NotFound)));
    }

    #[tokio::test]
    async fn a_name_is_taken_once_and_by_tenant() {
        let (store, vault) = (store(), vault());
        for who in ["a", "b", "", "../a", "a/b", "日本"] {
            vault.create(&store, &tenant(who), "hook", None, at(1)).await.unwrap();
            assert!(matches!(
                vault.create(&store, &tenant(who), "hook", None, at(1)).await,
                Err(VaultError::Exists)
            ));
            assert_eq!(vault.names(&store, &tenant(who)).await.unwrap().len(), 1, "{who}");
        }
        assert!(matches!(
            vault.rotate(&store, &tenant("c"), "hook", None, at(1)).await,
            Err(VaultError::NotFound)
        ));
        assert!(matches!(vault.remove(&store, &tenant("c"), "hook").await, Err(VaultError::NotFound)));
        let long = "x".repeat(SECRET_NAME_BYTES_MAX + 1);
        for name in ["", "a/b", "a b", "é", &long] {
            let refused = vault.create(&store, &tenant("a"), name, None, at(1)).await;
            assert!(matches!(refused, Err(VaultError::Invalid(_))), "{name}");
        }
    }

    #[tokio::test]
    async fn names_go_over_many_pages() {
        let (store, vault, tenant) = (store(), vault(), tenant("t"));
        for at_name in 0..2 * PAGE_ITEMS {
            vault.create(&store, &tenant, &format!("{at_name:05}"), None, at(1)).await.unwrap();
        }
        let names = vault.names(&store, &tenant).await.unwrap();
        assert_eq!((names.len(), &*names[150].name), (2 * PAGE_ITEMS, "00150"));
    }

    #[tokio::test]
    async fn a_stored_value_is_encrypted_and_bound_to_its_name() {
        let (store, vault, tenant) = (store(), vault(), tenant("t"));
        let secret = SigningSecret::parse(&format!("whsec_{}", STANDARD.encode([b'S'; 32]))).unwrap();
        vault.create(&store, &tenant, "a", Some(secret), at(1)).await.unwrap();
        let record = store.read(KIND, &id(&tenant, "a").unwrap()).await.unwrap().unwrap();
        let value = String::from_utf8(record.value.clone()).unwrap();
        assert!(!value.contains(&STANDARD.encode([b'S'; 30])) && !value.contains("whsec"), "{value}");
        let other = Vault::new(&SecretKey(Zeroizing::new([8; KEY_BYTES])));
        assert!(matches!(other.keys_for(&store, &tenant, "a").await, Err(VaultError::WrongKey)));
        let moved = id(&tenant, "b").unwrap();
        let change =
            Change { kind: KIND.into(), id: moved, expect: Expect::Absent, value: Some(record.value) };
        store.write(change).await.unwrap();
        assert!(matches!(vault.keys_for(&store, &tenant, "b").await, Err(VaultError::WrongKey)));
    }

    #[test]
    fn a_key_file_is_made_once_and_for_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secrets.key");
        let made: Vec<_> = std::thread::scope(|scope| {
            let makers: Vec<_> = (0..8).map(|_| scope.spawn(|| SecretKey::load_or_create(&path))).collect();
            makers.into_iter().map(|maker| maker.join().unwrap().unwrap().0).collect()
        });
        assert!(made.iter().all(|key| **key == *made[0] && **key != [0; KEY_BYTES]));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft stays behind");
        assert_eq!(format!("{:?}", SecretKey::load_or_create(&path).unwrap()), "SecretKey(…)");
    }

    #[cfg(unix)]
    #[test]
    fn a_key_file_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secrets.key");
        SecretKey::load_or_create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = SecretKey::load_or_create(&path).unwrap_err();
        assert!(error.to_string().contains("chmod 600"), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "short").unwrap();
        assert!(matches!(SecretKey::load_or_create(&path), Err(KeyError::Malformed)));
    }
}
