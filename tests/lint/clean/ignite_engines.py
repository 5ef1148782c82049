"""Ignite: a process function is one iteration, the engine runs the loop."""

import torch
from ignite.engine import Engine, Events, create_supervised_evaluator
from ignite.handlers import Checkpoint, DiskSaver
from ignite.metrics import Accuracy, Loss


def create_trainer(model, optimizer, criterion, config, device):
    scaler = torch.amp.GradScaler("cuda")
    accumulation = config["accumulation_steps"]

    def train_step(engine, batch):
        x, y = batch[0].to(device, non_blocking=True), batch[1].to(device, non_blocking=True)
        model.train()
        with torch.autocast("cuda"):
            loss = criterion(model(x), y) / accumulation
        scaler.scale(loss).backward()
        if engine.state.iteration % accumulation == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return {"loss": accumulation * loss.item()}

    return Engine(train_step)


def run(model, train_loader, val_loader, config, device="cuda"):
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    criterion = torch.nn.CrossEntropyLoss()
    trainer = create_trainer(model, optimizer, criterion, config, device)
    metrics = {"accuracy": Accuracy(), "loss": Loss(criterion)}
    evaluator = create_supervised_evaluator(model, metrics=metrics, device=device)

    @trainer.on(Events.EPOCH_COMPLETED)
    def validate(engine):
        evaluator.run(val_loader)
        print(engine.state.epoch, evaluator.state.metrics)

    def predict_step(engine, batch):
        model.eval()
        with torch.no_grad():
            return model(batch[0].to(device))

    predictor = Engine(predict_step)
    keeper = Checkpoint({"model": model, "trainer": trainer}, DiskSaver("checkpoints"), n_saved=2)
    trainer.add_event_handler(Events.EPOCH_COMPLETED(every=1), keeper)
    if config.get("resume"):
        state = torch.load(config["resume"], map_location="cpu")
        Checkpoint.load_objects({"model": model, "trainer": trainer}, state)
        del state
    trainer.run(train_loader, max_epochs=config["epochs"])
    return predictor
