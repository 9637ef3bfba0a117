//! Tests of `redrive policy preview`.

use std::process::{Command, Output};

fn redrive(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_redrive")).args(arguments).output().expect("the command starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("the output is text")
}

#[test]
fn the_upload_schedule_is_the_documented_one() {
    let output = redrive(&["policy", "preview", "upload", "--json"]);
    assert!(output.status.success());
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let waits: Vec<[u64; 3]> = json["retries"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|retry| ["earliestMs", "meanMs", "latestMs"].map(|field| retry[field].as_u64().expect(field)))
        .collect();
    assert_eq!(
        waits,
        [
            [800, 1_000, 1_200],
            [1_800, 2_000, 2_200],
            [3_800, 4_000, 4_200],
            [7_800, 8_000, 8_200],
            [15_800, 16_000, 16_200]
        ]
    );
    assert_eq!(json["total"]["meanMs"], 31_000);
}

#[test]
fn the_table_says_when_the_task_is_dead() {
    let table = text(&redrive(&["policy", "preview", "quadratic"]).stdout);
    assert!(table.contains("1 s / 1 s / 1 s") && table.contains("9 s / 9 s / 9 s"), "{table}");
    assert!(table.ends_with("\ndead after 4 attempts\n"), "{table}");
    let budget = text(&redrive(&["policy", "preview", "quadratic", "--budget", "3s"]).stdout);
    assert_eq!(budget.matches("after the end of the time budget\n").count(), 2, "{budget}");
}

#[test]
fn the_error_of_an_invalid_value_names_the_field() {
    let cases: [(&[&str], &str); 5] = [
        (&["--max-attempts", "0"], "--max-attempts <N>': write a whole number from 1"),
        (&["--multiplier=-2"], "multiplier: must be a positive number"),
        (
            &["--initial-delay", "500ms", "--max-delay", "400ms"],
            "initialDelayMs: must not be above maxDelayMs",
        ),
        (&["--jitter", "proportional", "--jitter-fraction", "1.5"], "jitterFraction: must be from 0 to 1"),
        (&["hourly"], "unknown preset \"hourly\": choose one of default"),
    ];
    for (arguments, problem) in cases {
        let output = redrive(&[&["policy", "preview"], arguments].concat());
        let error = text(&output.stderr);
        assert!(output.status.code() == Some(2) && error.contains(problem), "{arguments:?}: {error}");
    }
}
