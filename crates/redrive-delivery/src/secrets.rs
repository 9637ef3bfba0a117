//! Encrypts what the service keeps secret: signing secrets, which are stored as records, and credentials in the headers of tasks.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use redrive_bodies::tenant_folder;
use redrive_core::records::{Record, RecordEdit, RecordStore, RecordValue, Records};
use redrive_core::{Invalid, JobId, StoreError, Tenant, Timestamp};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::sign::SigningSecret;

/// The kind of the records, one for each signing secret.
pub const KIND: &str = "signing-secret";
/// The longest name of a secret, in bytes.
pub const SECRET_NAME_BYTES_MAX: usize = 64;

const KEY_BYTES: usize = 32;
const FINGERPRINT_BYTES: usize = 16;

/// The key that encrypts secrets. It is wiped from memory when it is dropped, and `Debug` does not show it.
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

    /// Reads the key from a file that only its owner can read. Creates the file with a new key if it does not exist.
    ///
    /// Two processes that start at the same time end up with the same key, because the file is created atomically.
    pub fn load_or_create(path: &Path) -> Result<Self, KeyError> {
        match Self::load(path) {
            Err(KeyError::File(_, error)) if error.kind() == io::ErrorKind::NotFound => {
                create(path).map_err(|error| KeyError::File(path.to_owned(), error))?;
                Self::load(path)
            }
            loaded => loaded,
        }
    }

    /// Reads the key from a file that only its owner can read; `None` if the file does not exist.
    pub fn load_existing(path: &Path) -> Result<Option<Self>, KeyError> {
        match Self::load(path) {
            Ok(key) => Ok(Some(key)),
            Err(KeyError::File(_, error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Identifies the key without revealing it: a MAC of a fixed text.
    pub fn fingerprint(&self) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &*self.0);
        let tag = hmac::sign(&key, b"redrive: fingerprint of the secrets key");
        hex::encode(&tag.as_ref()[..FINGERPRINT_BYTES])
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

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// It has the wrong format.
    #[error("a secret key is the base64 of 32 bytes; create one with `openssl rand -base64 32`")]
    Malformed,
    /// Other users may have read it.
    #[error("other users can read {}; run `chmod 600` on it, and replace the key if they may have read it", .0.display())]
    Exposed(PathBuf),
    /// The file cannot be read or created.
    #[error("the secret key in {} cannot be read or created", .0.display())]
    File(PathBuf, #[source] io::Error),
}

/// Stores signing secrets, encrypted, and encrypts the headers of tasks that carry credentials.
pub struct Vault {
    key: LessSafeKey,
}

impl Vault {
    /// A vault that encrypts with `key`.
    pub fn new(key: &SecretKey) -> Self {
        let key = UnboundKey::new(&CHACHA20_POLY1305, &*key.0).expect("a key of 32 bytes");
        Self { key: LessSafeKey::new(key) }
    }

    /// Stores the given secret, or generates one, and returns it. No later call returns it.
    pub async fn create(
        &self,
        records: &dyn RecordStore,
        tenant: &Tenant,
        name: &str,
        given: Option<SigningSecret>,
        now: Timestamp,
    ) -> Result<Zeroizing<String>, VaultError> {
        let id = id(tenant, name)?;
        let secret = given.unwrap_or_else(SigningSecret::generate);
        let stored = StoredSecret {
            created_at_ms: now.as_ms(),
            rotated_at_ms: None,
            current: self.seal(&id, &secret),
            previous: None,
        };
        match Records::new(records).create(&id, &stored).await? {
            Some(_) => Ok(secret.reveal()),
            None => Err(VaultError::Exists),
        }
    }

    /// Replaces a secret. The previous one stays active beside it; an older one is dropped.
    pub async fn rotate(
        &self,
        records: &dyn RecordStore,
        tenant: &Tenant,
        name: &str,
        given: Option<SigningSecret>,
        now: Timestamp,
    ) -> Result<Zeroizing<String>, VaultError> {
        let id = id(tenant, name)?;
        let secret = given.unwrap_or_else(SigningSecret::generate);
        let sealed = self.seal(&id, &secret);
        change(records, &id, |stored| {
            let previous = Some(stored.current);
            StoredSecret { rotated_at_ms: Some(now.as_ms()), current: sealed.clone(), previous, ..stored }
        })
        .await?;
        Ok(secret.reveal())
    }

    /// Stops signing with the previous secret.
    pub async fn retire_previous(
        &self,
        records: &dyn RecordStore,
        tenant: &Tenant,
        name: &str,
    ) -> Result<(), VaultError> {
        change(records, &id(tenant, name)?, |stored| StoredSecret { previous: None, ..stored }).await
    }

    /// Removes a secret, and the previous one if there is one.
    pub async fn remove(
        &self,
        records: &dyn RecordStore,
        tenant: &Tenant,
        name: &str,
    ) -> Result<(), VaultError> {
        let remove = |stored: Option<StoredSecret>| match stored {
            Some(_) => Ok(RecordEdit::Remove(())),
            None => Err(VaultError::NotFound),
        };
        Records::new(records).update(&id(tenant, name)?, remove).await
    }

    /// The names and times of a tenant's secrets, sorted by name.
    pub async fn names(
        &self,
        records: &dyn RecordStore,
        tenant: &Tenant,
    ) -> Result<Vec<SecretInfo>, VaultError> {
        let prefix = format!("{}/", tenant_folder(tenant));
        let secrets = Records::<StoredSecret>::new(records).all(&prefix).await?;
        Ok(secrets.iter().map(|record| record.value.info(&record.id[prefix.len()..])).collect())
    }

    /// The active secrets to sign with, newest first.
    pub async fn active_secrets(
        &self,
        records: &dyn RecordStore,
        tenant: &Tenant,
        name: &str,
    ) -> Result<Vec<SigningSecret>, VaultError> {
        let id = id(tenant, name)?;
        let stored = Records::<StoredSecret>::new(records).get(&id).await?.ok_or(VaultError::NotFound)?.value;
        std::iter::once(&stored.current)
            .chain(&stored.previous)
            .map(|sealed| self.unseal(&id, sealed))
            .collect()
    }

    /// Whether this key decrypts the secrets of a store; `None` if the store has none.
    pub async fn can_decrypt(&self, records: &dyn RecordStore) -> Result<Option<bool>, StoreError> {
        let first = Records::<StoredSecret>::new(records).page("", None, 1).await?.items.pop();
        Ok(first.map(|Record { id, value, .. }| self.unseal(&id, &value.current).is_ok()))
    }

    /// Encrypts the value of a header. The ciphertext is bound to the tenant, the job and the name of the header, so it cannot be moved
    /// to another one.
    pub fn seal_header(&self, tenant: &Tenant, job: JobId, name: &str, value: &str) -> String {
        self.seal_bytes(&header_context(tenant, job, name), value.as_bytes())
    }

    /// Decrypts the output of [`Vault::seal_header`].
    pub fn open_header(
        &self,
        tenant: &Tenant,
        job: JobId,
        name: &str,
        sealed: &str,
    ) -> Result<String, VaultError> {
        let opened = self.open_bytes(&header_context(tenant, job, name), sealed)?;
        String::from_utf8(opened.to_vec()).map_err(|_| VaultError::WrongKey)
    }

    /// Encrypts a short text for one tenant and one purpose, which only this service can decrypt.
    pub fn seal_text(&self, purpose: &str, tenant: &Tenant, text: &str) -> String {
        self.seal_bytes(&text_context(purpose, tenant), text.as_bytes())
    }

    /// Decrypts the output of [`Vault::seal_text`].
    pub fn open_text(&self, purpose: &str, tenant: &Tenant, sealed: &str) -> Result<String, VaultError> {
        let opened = self.open_bytes(&text_context(purpose, tenant), sealed)?;
        String::from_utf8(opened.to_vec()).map_err(|_| VaultError::WrongKey)
    }

    /// The ciphertext is bound to the id of the record, so that it cannot be moved to another name.
    fn seal(&self, id: &str, secret: &SigningSecret) -> String {
        self.seal_bytes(id, secret.as_bytes())
    }

    fn unseal(&self, id: &str, sealed: &str) -> Result<SigningSecret, VaultError> {
        SigningSecret::from_bytes(self.open_bytes(id, sealed)?).ok_or(VaultError::WrongKey)
    }

    /// The nonce and the ciphertext, in base64.
    fn seal_bytes(&self, context: &str, bytes: &[u8]) -> String {
        let mut nonce = [0; NONCE_LEN];
        fill(&mut nonce);
        let mut sealed = bytes.to_vec();
        self.key
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(context), &mut sealed)
            .expect("a short secret");
        STANDARD.encode([&nonce[..], &sealed].concat())
    }

    fn open_bytes(&self, context: &str, sealed: &str) -> Result<Zeroizing<Vec<u8>>, VaultError> {
        let mut bytes = STANDARD.decode(sealed).map(Zeroizing::new).map_err(|_| VaultError::WrongKey)?;
        let (nonce, sealed) = bytes.split_at_mut_checked(NONCE_LEN).ok_or(VaultError::WrongKey)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| VaultError::WrongKey)?;
        let opened =
            self.key.open_in_place(nonce, Aad::from(context), sealed).map_err(|_| VaultError::WrongKey)?;
        Ok(Zeroizing::new(opened.to_vec()))
    }
}

/// The context to which the ciphertext of a header is bound. No record id starts like this.
fn header_context(tenant: &Tenant, job: JobId, name: &str) -> String {
    format!("header\0{tenant}\0{job}\0{}", name.to_ascii_lowercase())
}

/// The context to which the ciphertext of a text is bound.
fn text_context(purpose: &str, tenant: &Tenant) -> String {
    format!("text\0{purpose}\0{tenant}")
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Vault(…)")
    }
}

/// The public facts about a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretInfo {
    /// Its name.
    pub name: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last rotated; `None` if never.
    pub rotated_at: Option<Timestamp>,
    /// Whether the previous secret still signs too.
    pub has_previous: bool,
}

/// Why a secret could not be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    /// The name is taken.
    #[error("a signing secret with this name exists; rotate it instead")]
    Exists,
    /// There is no secret with this name.
    #[error("there is no signing secret with this name; create it first")]
    NotFound,
    /// It was encrypted with another key, or was tampered with.
    #[error(
        "the signing secret cannot be decrypted with the key of this node; start the node with the key that encrypted the secret, or remove the secret"
    )]
    WrongKey,
    /// The name is not valid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A signing secret as its record stores it. Both secrets are encrypted.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredSecret {
    created_at_ms: i64,
    rotated_at_ms: Option<i64>,
    current: String,
    previous: Option<String>,
}

impl RecordValue for StoredSecret {
    const KIND: &'static str = KIND;
}

impl StoredSecret {
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
    Ok(format!("{}/{name}", tenant_folder(tenant)))
}

async fn change(
    records: &dyn RecordStore,
    id: &str,
    mut edit: impl FnMut(StoredSecret) -> StoredSecret,
) -> Result<(), VaultError> {
    let edit =
        |stored: Option<StoredSecret>| Ok(RecordEdit::Put(edit(stored.ok_or(VaultError::NotFound)?), ()));
    Records::new(records).update(id, edit).await
}

/// Writes a new key to a temporary file and links it to `path`. The link fails if another process was faster; then its key stays.
fn create(path: &Path) -> io::Result<()> {
    let temporary = path.with_extension(format!("{}.new", uuid::Uuid::now_v7().simple()));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options.open(&temporary).and_then(|mut file| {
        let text = Zeroizing::new(STANDARD.encode(*SecretKey::generate().0));
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    let linked = written.and_then(|()| fs::hard_link(&temporary, path));
    let _ = fs::remove_file(&temporary);
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
        let keys = vault().active_secrets(store, &tenant("t"), name).await.unwrap();
        keys.iter().map(|key| key.reveal().to_string()).collect()
    }

    #[test]
    fn a_fingerprint_distinguishes_keys_and_reveals_none() {
        let key = |byte| SecretKey(Zeroizing::new([byte; KEY_BYTES]));
        assert_eq!(key(7).fingerprint(), key(7).fingerprint());
        assert_ne!(key(7).fingerprint(), key(8).fingerprint());
        assert_eq!(key(7).fingerprint().len(), 2 * FINGERPRINT_BYTES);
        assert!(!key(7).fingerprint().contains("0707"));
    }

    #[tokio::test]
    async fn a_key_that_cannot_decrypt_the_stored_secrets_is_detected() {
        let (store, right) = (store(), vault());
        let wrong = Vault::new(&SecretKey(Zeroizing::new([8; KEY_BYTES])));
        assert_eq!(wrong.can_decrypt(&store).await.unwrap(), None, "the store has no secrets");
        right.create(&store, &tenant("t"), "hook", None, at(1)).await.unwrap();
        assert_eq!(right.can_decrypt(&store).await.unwrap(), Some(true));
        assert_eq!(wrong.can_decrypt(&store).await.unwrap(), Some(false));
    }

    #[tokio::test]
    async fn a_rotation_keeps_two_secrets_and_drops_the_oldest() {
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
        assert!(matches!(vault.active_secrets(&store, &tenant, "hook").await, Err(VaultError::NotFound)));
    }

    #[tokio::test]
    async fn a_name_is_unique_for_each_tenant() {
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
    async fn names_are_read_page_by_page() {
        const COUNT: usize = 2 * redrive_core::limits::PAGE_ITEMS_MAX;
        let (store, vault, tenant) = (store(), vault(), tenant("t"));
        for at_name in 0..COUNT {
            vault.create(&store, &tenant, &format!("{at_name:05}"), None, at(1)).await.unwrap();
        }
        let names = vault.names(&store, &tenant).await.unwrap();
        assert_eq!((names.len(), &*names[150].name), (COUNT, "00150"));
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
        assert!(matches!(other.active_secrets(&store, &tenant, "a").await, Err(VaultError::WrongKey)));
        let moved = id(&tenant, "b").unwrap();
        let value = StoredSecret::decode(&record.value).unwrap();
        Records::new(&store).create(&moved, &value).await.unwrap();
        assert!(matches!(vault.active_secrets(&store, &tenant, "b").await, Err(VaultError::WrongKey)));
    }

    #[test]
    fn a_key_file_is_created_once_and_only_its_owner_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secrets.key");
        let keys: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| SecretKey::load_or_create(&path))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap().unwrap().0).collect()
        });
        assert!(keys.iter().all(|key| **key == *keys[0] && **key != [0; KEY_BYTES]));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
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
