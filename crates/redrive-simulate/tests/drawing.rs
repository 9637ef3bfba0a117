//! Pictures are well-formed, and small ones are as they were; `UPDATE_DOCS=1` accepts new ones.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::path::Path;

use quick_xml::Reader;
use quick_xml::events::Event;
use redrive_simulate::draw::{of_contention, of_outage};
use redrive_simulate::{Contender, Contention, Drawing, Outage, contenders};

fn small_contention() -> Drawing {
    of_contention(&Contention { clients: 5, trials: 3, ..Contention::default() }.run().unwrap())
}

fn small_sweep() -> Drawing {
    of_contention(&Contention { trials: 2, ..Contention::default() }.sweep([5, 10]).unwrap())
}

fn small_outage() -> Drawing {
    let setup = Outage { tasks: 50, capacity: 20, ..Outage::default() };
    of_outage(&setup.run(&contenders::of_the_engine().unwrap()[..4]))
}

/// The elements by name, once every one is found to be closed.
fn elements(svg: &str) -> Vec<String> {
    let mut reader = Reader::from_str(svg);
    reader.config_mut().enable_all_checks(true);
    let mut open = Vec::new();
    let mut seen = Vec::new();
    loop {
        match reader.read_event().unwrap() {
            Event::Start(start) => open.push(start.name().as_ref().to_vec()),
            Event::End(end) => assert_eq!(open.pop().as_deref(), Some(end.name().as_ref())),
            Event::Empty(empty) => {
                assert!(empty.attributes().all(|attribute| attribute.is_ok()));
                seen.push(String::from_utf8(empty.name().as_ref().to_vec()).unwrap());
            }
            Event::Eof => break,
            _ => {}
        }
    }
    assert!(open.is_empty(), "{open:?} not closed");
    seen
}

fn check_snapshot(name: &str, made: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == made, "{name} has changed: look at it, then run this with UPDATE_DOCS=1\n{made}");
}

#[test]
fn pictures_are_well_formed_and_draw_every_contender() {
    let paths = |drawing: &Drawing| elements(&drawing.svg()).iter().filter(|name| *name == "path").count();
    assert_eq!(paths(&small_contention()), 5);
    assert_eq!(paths(&small_outage()), 4);
    // Two charts and the legend.
    assert_eq!(paths(&small_sweep()), 15);
}

#[test]
fn names_cannot_break_a_picture() {
    let policy = contenders::of_the_engine().unwrap().remove(0).policy;
    let odd = Contender::new("a<b & \"c\".json", policy);
    let drawing = of_outage(&Outage { tasks: 10, ..Outage::default() }.run(&[odd]));
    elements(&drawing.svg());
    assert!(drawing.csv().lines().nth(1).unwrap().starts_with("\"a<b & \"\"c\"\".json\",0,"));
}

#[test]
fn small_drawings_are_as_they_were() {
    check_snapshot("contention.svg", &small_contention().svg());
    check_snapshot("contention.txt", &small_contention().blocks(72));
    check_snapshot("sweep.svg", &small_sweep().svg());
    check_snapshot("sweep.txt", &small_sweep().blocks(72));
    check_snapshot("sweep.csv", &small_sweep().csv());
    check_snapshot("outage.svg", &small_outage().svg());
    check_snapshot("outage.txt", &small_outage().blocks(72));
    check_snapshot("outage.csv", &small_outage().csv());
}

#[test]
fn rows_of_blocks_keep_to_the_width_they_are_given() {
    for columns in [40, 72, 100, 200] {
        for drawing in [small_contention(), small_outage()] {
            let drawn = drawing.blocks(columns);
            let blocks = |line: &&str| line.contains(['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']);
            let widest = drawn.lines().filter(blocks).map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= columns, "{columns}:\n{drawn}");
            assert!(widest > columns / 4, "{columns}:\n{drawn}");
        }
    }
    let narrow = small_outage().blocks(1);
    assert!(narrow.contains('█') || narrow.contains('▁'), "{narrow}");
}

#[test]
fn a_table_holds_every_call() {
    let drawing = small_outage();
    let Drawing::Strips(strips) = &drawing else { panic!("an outage is drawn in strips") };
    let drawn: f64 = strips.strips.iter().map(|strip| strip.calls.sum()).sum();
    let csv = drawing.csv();
    let told: f64 =
        csv.lines().skip(1).map(|line| line.rsplit(',').next().unwrap().parse::<f64>().unwrap()).sum();
    assert_eq!(drawn, told);
}
