//! Style sheet, script and icon. Their names contain a hash of their content, so browsers can cache them forever.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest as _, Sha256};

use crate::error::PageError;

/// A static file of the console.
pub(crate) struct Asset {
    stem: &'static str,
    ending: &'static str,
    kind: &'static str,
    content: &'static str,
    path: LazyLock<String>,
}

pub(crate) static STYLE: Asset = Asset {
    stem: "console",
    ending: "css",
    kind: "text/css; charset=utf-8",
    content: include_str!("../assets/console.css"),
    path: LazyLock::new(|| STYLE.hashed_path()),
};
pub(crate) static SCRIPT: Asset = Asset {
    stem: "console",
    ending: "js",
    kind: "text/javascript; charset=utf-8",
    content: include_str!("../assets/console.js"),
    path: LazyLock::new(|| SCRIPT.hashed_path()),
};
pub(crate) static ICON: Asset = Asset {
    stem: "icon",
    ending: "svg",
    kind: "image/svg+xml",
    content: include_str!("../assets/icon.svg"),
    path: LazyLock::new(|| ICON.hashed_path()),
};

impl Asset {
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    fn hashed_path(&self) -> String {
        let hash = hex::encode(Sha256::digest(self.content));
        format!("/console/assets/{}.{}.{}", self.stem, &hash[..16], self.ending)
    }
}

/// `GET /console/assets/{file}`. During an upgrade, a page of another node may name another version of a file. Then the
/// version of this node is sent and not cached.
pub(crate) async fn get(Path(file): Path<String>) -> Result<Response, PageError> {
    let mut all = [&STYLE, &SCRIPT, &ICON].into_iter();
    let is_requested = |asset: &&Asset| file.starts_with(asset.stem) && file.ends_with(asset.ending);
    let asset = all.find(is_requested).ok_or(PageError::NotFound)?;
    let exact = asset.path().ends_with(&file);
    let cache_control = if exact { "public, max-age=31536000, immutable" } else { "no-cache" };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(asset.kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static(cache_control)),
    ];
    Ok((headers, asset.content).into_response())
}
