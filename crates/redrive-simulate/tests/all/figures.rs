//! Figures are well-formed, and small ones match their snapshots; `UPDATE_DOCS=1` accepts new ones.

use std::path::Path;

use quick_xml::Reader;
use quick_xml::events::Event;
use redrive_simulate::figure::{contention_figure, outage_figure};
use redrive_simulate::{ContentionExperiment, Figure, NamedPolicy, OutageExperiment, policies};

fn small_contention() -> Figure {
    contention_figure(
        &ContentionExperiment { clients: 5, trials: 3, ..ContentionExperiment::default() }.run().unwrap(),
    )
}

fn small_sweep() -> Figure {
    contention_figure(
        &ContentionExperiment { trials: 2, ..ContentionExperiment::default() }.sweep([5, 10]).unwrap(),
    )
}

fn small_outage() -> Figure {
    let setup = OutageExperiment { tasks: 50, capacity: 20, ..OutageExperiment::default() };
    outage_figure(&setup.run(&policies::engine_policies().unwrap()[..4]))
}

/// The names of the elements. Fails if one is not closed.
fn elements(svg: &str) -> Vec<String> {
    let mut reader = Reader::from_str(svg);
    reader.config_mut().enable_all_checks(true);
    let mut open = Vec::new();
    let mut names = Vec::new();
    loop {
        match reader.read_event().unwrap() {
            Event::Start(start) => open.push(start.name().as_ref().to_vec()),
            Event::End(end) => assert_eq!(open.pop().as_deref(), Some(end.name().as_ref())),
            Event::Empty(empty) => {
                assert!(empty.attributes().all(|attribute| attribute.is_ok()));
                names.push(String::from_utf8(empty.name().as_ref().to_vec()).unwrap());
            }
            Event::Eof => break,
            _ => {}
        }
    }
    assert!(open.is_empty(), "{open:?} not closed");
    names
}

fn check_snapshot(name: &str, figure: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, figure).unwrap();
    }
    let snapshot = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        snapshot == figure,
        "{name} has changed: check it, then run this test with UPDATE_DOCS=1\n{figure}"
    );
}

#[test]
fn images_are_well_formed_and_show_every_policy() {
    let paths = |figure: &Figure| elements(&figure.svg()).iter().filter(|name| *name == "path").count();
    assert_eq!(paths(&small_contention()), 5);
    assert_eq!(paths(&small_outage()), 4);
    // Two charts and the legend.
    assert_eq!(paths(&small_sweep()), 15);
}

#[test]
fn names_are_escaped() {
    let policy = policies::engine_policies().unwrap().remove(0).policy;
    let odd = NamedPolicy::new("a<b & \"c\".json", policy);
    let figure = outage_figure(&OutageExperiment { tasks: 10, ..OutageExperiment::default() }.run(&[odd]));
    elements(&figure.svg());
    assert!(figure.csv().lines().nth(1).unwrap().starts_with("\"a<b & \"\"c\"\".json\",0,"));
}

#[test]
fn small_figures_match_their_snapshots() {
    check_snapshot("contention.svg", &small_contention().svg());
    check_snapshot("contention.txt", &small_contention().text(72));
    check_snapshot("sweep.svg", &small_sweep().svg());
    check_snapshot("sweep.txt", &small_sweep().text(72));
    check_snapshot("sweep.csv", &small_sweep().csv());
    check_snapshot("outage.svg", &small_outage().svg());
    check_snapshot("outage.txt", &small_outage().text(72));
    check_snapshot("outage.csv", &small_outage().csv());
}

#[test]
fn timelines_fit_the_width_of_the_terminal() {
    for columns in [40, 72, 100, 200] {
        for figure in [small_contention(), small_outage()] {
            let drawn = figure.text(columns);
            let blocks = |line: &&str| line.contains(['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']);
            let widest = drawn.lines().filter(blocks).map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= columns, "{columns}:\n{drawn}");
            assert!(widest > columns / 4, "{columns}:\n{drawn}");
        }
    }
    let narrow = small_outage().text(1);
    assert!(narrow.contains('█') || narrow.contains('▁'), "{narrow}");
}

#[test]
fn the_csv_contains_every_call() {
    let figure = small_outage();
    let Figure::CallsOverTime(calls) = &figure else { panic!("an outage is shown over time") };
    let drawn: f64 = calls.timelines.iter().map(|timeline| timeline.calls.sum()).sum();
    let csv = figure.csv();
    let listed: f64 =
        csv.lines().skip(1).map(|line| line.rsplit(',').next().unwrap().parse::<f64>().unwrap()).sum();
    assert_eq!(drawn, listed);
}
