//! Style, script and icon: part of the program, named by their content, kept by browsers for good.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest as _, Sha256};

use crate::trouble::Trouble;
use crate::words::hex;

/// A file that pages refer to.
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
    path: LazyLock::new(|| STYLE.named_by_content()),
};
pub(crate) static SCRIPT: Asset = Asset {
    stem: "console",
    ending: "js",
    kind: "text/javascript; charset=utf-8",
    content: include_str!("../assets/console.js"),
    path: LazyLock::new(|| SCRIPT.named_by_content()),
};
pub(crate) static ICON: Asset = Asset {
    stem: "icon",
    ending: "svg",
    kind: "image/svg+xml",
    content: include_str!("../assets/icon.svg"),
    path: LazyLock::new(|| ICON.named_by_content()),
};

impl Asset {
    /// Where it is.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    fn named_by_content(&self) -> String {
        let hash = hex(&Sha256::digest(self.content));
        format!("/console/assets/{}.{}.{}", self.stem, &hash[..16], self.ending)
    }
}

/// `GET /console/assets/{file}`. A name of other content is another version's, on another node during an upgrade: what
/// is here does instead, for this once.
pub(crate) async fn get(Path(file): Path<String>) -> Result<Response, Trouble> {
    let mut all = [&STYLE, &SCRIPT, &ICON].into_iter();
    let ours = |asset: &&Asset| file.starts_with(asset.stem) && file.ends_with(asset.ending);
    let asset = all.find(ours).ok_or(Trouble::NoPage)?;
    let exact = asset.path().ends_with(&file);
    let keep = if exact { "public, max-age=31536000, immutable" } else { "no-cache" };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(asset.kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static(keep)),
    ];
    Ok((headers, asset.content).into_response())
}
