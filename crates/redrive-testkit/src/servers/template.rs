//! The files of a fresh Postgres, made once for each version: making them takes seconds, a copy takes none.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::LazyLock;

use super::folder::Folder;
use super::process::{command, find_program, printed, user};

/// Part of the template's name; another one for each change of how it is made.
const REVISION: u32 = 1;

/// The oldest Postgres that is looked for.
const VERSION_MIN: u32 = 13;

/// The folder with the programs of the newest Postgres here.
pub(super) fn programs() -> &'static Path {
    static PROGRAMS: LazyLock<PathBuf> = LazyLock::new(|| {
        let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let versions = versions.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
        let debian = |version| PathBuf::from(format!("/usr/lib/postgresql/{version}/bin"));
        let newest =
            versions.filter(|version| *version >= VERSION_MIN && debian(*version).join("postgres").is_file());
        let on_path = || find_program("postgres")?.parent().map(Path::to_owned);
        let found = newest.max().map(debian).or_else(on_path);
        found.expect("Postgres is missing: run `cargo xtask setup`")
    });
    &PROGRAMS
}

/// Fills a folder with the files of a fresh server: the superuser `redrive` whom it trusts, and a database of that name.
pub(super) fn copy_template(data: &Path) {
    static TEMPLATE: LazyLock<PathBuf> = LazyLock::new(template);
    let mut copy = command("cp");
    copy.arg("-a").arg(&*TEMPLATE).arg(data);
    printed(copy);
}

fn template() -> PathBuf {
    let mut ask = command(programs().join("postgres"));
    ask.arg("--version");
    let answer = printed(ask);
    let version = answer.split(' ').nth(2).unwrap_or("unknown");
    let name = format!("redrive-postgres-template-{version}-{}-{REVISION}", user());
    let template = std::env::temp_dir().join(name);
    if !is_whole(&template) {
        // What is there but not whole, a cleaner of temporary files has been at.
        let _ = std::fs::remove_dir_all(&template);
        make(&template);
    }
    template
}

/// Anyone could have made a folder of that name; only our own is used.
fn is_whole(template: &Path) -> bool {
    let control = std::fs::metadata(template.join("global/pg_control"));
    control.is_ok_and(|control| control.uid() == user())
}

/// Makes it elsewhere and moves it into place whole, since other processes do the same at the same time.
fn make(template: &Path) {
    let folder = Folder::create("postgres-new", &std::env::temp_dir());
    let data = folder.join("data");
    let mut init = command(programs().join("initdb"));
    init.args(["--username=redrive", "--auth=trust", "--encoding=UTF8", "--locale=C", "--wal-segsize=1"]);
    init.args(["--no-sync", "--no-instructions", "--pgdata"]).arg(&data);
    printed(init);
    let statements = folder.join("statements");
    std::fs::write(&statements, "CREATE DATABASE redrive\n").expect("a folder of our own takes a file");
    let statements = std::fs::File::open(&statements).expect("it has just been written");
    let mut single = command(programs().join("postgres"));
    single.args(["--single", "-D"]).arg(&data).arg("postgres").stdin(Stdio::from(statements));
    printed(single);
    let moved = std::fs::rename(&data, template);
    assert!(moved.is_ok() || is_whole(template), "{}: {moved:?}", template.display());
}
