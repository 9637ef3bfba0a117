//! The S3 server: it takes buckets, keeps them through a crash, and is gone afterwards.

use std::net::TcpStream;

use redrive_testkit::servers::S3;

#[test]
fn it_comes_back_with_what_it_had() {
    let mut s3 = S3::start();
    s3.create_bucket("first");
    s3.kill();
    assert!(TcpStream::connect(s3.address()).is_err(), "it still listens");
    s3.restart();
    s3.create_bucket("second");
    let address = s3.address();
    drop(s3);
    assert!(TcpStream::connect(address).is_err(), "it still listens");
}
