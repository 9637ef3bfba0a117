//! Writes a row in the transaction that ends its job.

use redrive::{Context, EndedJob, Error, Redrive, SqliteTransaction, State, Task};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Task)]
struct Ship {
    order: i64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redrive = Redrive::open("sqlite:jobs.db").await?;
    let ship = redrive.enqueue(Ship { order: 7 }).prepare().await?;
    let job = redrive
        .transact(move |tx| {
            let sql = "CREATE TABLE orders (id INTEGER PRIMARY KEY, shipped INTEGER); INSERT INTO orders (id) VALUES (7)";
            tx.connection().execute_batch(sql).map_err(Error::refused)?;
            tx.enqueue(&ship)
        })
        .await?
        .id();

    let worker = redrive.worker().on(|_: Ship, _: Context| async { Ok(()) }).on_end(
        |tx: &mut SqliteTransaction<'_, '_, '_>, ship: &Ship, ended: &EndedJob| {
            let shipped = ended.state == State::Succeeded;
            let sql = "UPDATE orders SET shipped = ?2 WHERE id = ?1";
            tx.connection().execute(sql, (ship.order, shipped))?;
            Ok(())
        },
    );
    let waiting = redrive.result::<Ship>(job);
    worker.run_until(async { drop(waiting.await) }).await?;
    let shipped = redrive.transact(|tx| {
        let row = tx
            .connection()
            .query_row("SELECT shipped FROM orders WHERE id = 7", (), |row| row.get::<_, bool>(0));
        row.map_err(Error::refused)
    });
    println!("order 7 is shipped: {}", shipped.await?);
    Ok(())
}
