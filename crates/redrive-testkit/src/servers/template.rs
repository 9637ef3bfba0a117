//! The files of a new Postgres. They are created once for each version, because that takes seconds, and then copied.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::LazyLock;

use super::folder::Folder;
use super::process::{command, find_program, stdout_of, user};

/// Part of the template's name. Increase it whenever the content of the template changes.
const REVISION: u32 = 1;

/// The oldest supported version of Postgres.
const VERSION_MIN: u32 = 13;

/// The folder with the programs of the newest Postgres on this machine.
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

/// Fills a folder with the files of a new server, which has the trusted superuser `redrive` and a database of the same
/// name.
pub(super) fn copy_template(data: &Path) {
    static TEMPLATE: LazyLock<PathBuf> = LazyLock::new(template);
    let mut copy = command("cp");
    copy.arg("-a").arg(&*TEMPLATE).arg(data);
    stdout_of(copy);
}

fn template() -> PathBuf {
    let mut version_command = command(programs().join("postgres"));
    version_command.arg("--version");
    let answer = stdout_of(version_command);
    let version = answer.split(' ').nth(2).unwrap_or("unknown");
    let name = format!("redrive-postgres-template-{version}-{}-{REVISION}", user());
    let template = std::env::temp_dir().join(name);
    if !is_complete(&template) {
        // An incomplete template was damaged by a cleaner of temporary files.
        let _ = std::fs::remove_dir_all(&template);
        create(&template);
    }
    template
}

/// Whether the template exists and belongs to the user that runs servers. Another user could have created a folder with that name.
fn is_complete(template: &Path) -> bool {
    let control = std::fs::metadata(template.join("global/pg_control"));
    control.is_ok_and(|control| control.uid() == user())
}

/// Creates the template in another folder and then renames it, because other processes may do the same at the same time.
fn create(template: &Path) {
    let folder = Folder::create("postgres-new", &std::env::temp_dir());
    let data = folder.join("data");
    let mut init = command(programs().join("initdb"));
    init.args(["--username=redrive", "--auth=trust", "--encoding=UTF8", "--locale=C", "--wal-segsize=1"]);
    init.args(["--no-sync", "--no-instructions", "--pgdata"]).arg(&data);
    stdout_of(init);
    let statements = folder.join("statements");
    std::fs::write(&statements, "CREATE DATABASE redrive\n").expect("the statements can be written");
    let statements = std::fs::File::open(&statements).expect("the statements can be read");
    let mut single = command(programs().join("postgres"));
    single.args(["--single", "-D"]).arg(&data).arg("postgres").stdin(Stdio::from(statements));
    stdout_of(single);
    let moved = std::fs::rename(&data, template);
    assert!(moved.is_ok() || is_complete(template), "{}: {moved:?}", template.display());
}
