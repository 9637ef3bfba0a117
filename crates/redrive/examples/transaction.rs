//! Enqueues a job in the transaction that inserts its order, on Postgres. Needs the feature `postgres`, and the address of a
//! database in `DATABASE_URL`.

use redrive::{Context, Redrive, Task};
use serde::{Deserialize, Serialize};
use tokio_postgres::NoTls;

#[derive(Serialize, Deserialize, Task)]
#[task(output = String)]
struct Ship {
    order: i32,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address =
        std::env::var("DATABASE_URL").map_err(|_| "set DATABASE_URL to postgres://USER@HOST/DATABASE")?;
    let redrive = Redrive::open(&address).await?;
    let (mut client, connection) = tokio_postgres::connect(&address, NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute("CREATE TABLE IF NOT EXISTS orders (id int PRIMARY KEY)").await?;

    let mut transaction = client.transaction().await?;
    transaction.execute("INSERT INTO orders (id) VALUES (7)", &[]).await?;
    let kept = redrive.enqueue(Ship { order: 7 }).key("order-7").enqueue_in(&mut transaction).await?.id();
    transaction.commit().await?;

    let mut transaction = client.transaction().await?;
    transaction.execute("INSERT INTO orders (id) VALUES (8)", &[]).await?;
    let undone = redrive.enqueue(Ship { order: 8 }).enqueue_in(&mut transaction).await?.id();
    transaction.rollback().await?;

    let shipped = redrive.result::<Ship>(kept);
    redrive
        .worker()
        .on(|job: Ship, _cx: Context| async move { Ok(format!("order {} is on its way", job.order)) })
        .run_until(async {
            match shipped.await {
                Ok(answer) => println!("{answer}"),
                Err(error) => println!("order 7: {error}"),
            }
        })
        .await?;
    println!("order 8 has a job: {}", redrive.get(undone).await?.is_some());
    Ok(())
}
