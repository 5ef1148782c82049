"""Lightning: one module with automatic and one with manual optimisation."""

import lightning as L
import torch
import torch.nn.functional as F


class Classifier(L.LightningModule):
    def __init__(self, backbone, lr):
        super().__init__()
        self.backbone, self.lr = backbone, lr
        self.validation_outputs = []

    def forward(self, x):
        return self.backbone(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.validation_outputs.append(loss)
        self.log("val_acc", (logits.argmax(-1) == y).float().mean())

    def on_validation_epoch_end(self):
        self.log("val_loss", torch.stack(self.validation_outputs).mean())
        self.validation_outputs.clear()

    def predict_step(self, batch, batch_idx):
        return self(batch[0]).softmax(-1)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class Adversarial(L.LightningModule):
    def __init__(self, generator, discriminator, accumulate):
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.discriminator, self.accumulate = generator, discriminator, accumulate

    def training_step(self, batch, batch_idx):
        g_opt, d_opt = self.optimizers()
        noise = torch.randn(len(batch), 128, device=self.device)
        boundary = (batch_idx + 1) % self.accumulate == 0 or self.trainer.is_last_batch
        self.toggle_optimizer(d_opt)
        fake = self.generator(noise).detach()
        d_loss = F.softplus(self.discriminator(fake)).mean() + F.softplus(-self.discriminator(batch)).mean()
        self.manual_backward(d_loss / self.accumulate)
        if boundary:
            self.clip_gradients(d_opt, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
            d_opt.step()
            d_opt.zero_grad()
        self.untoggle_optimizer(d_opt)
        self.toggle_optimizer(g_opt)
        g_loss = F.softplus(-self.discriminator(self.generator(noise))).mean()
        self.manual_backward(g_loss / self.accumulate)
        if boundary:
            g_opt.step()
            g_opt.zero_grad()
        self.untoggle_optimizer(g_opt)
        self.log_dict({"g": g_loss, "d": d_loss})

    def configure_optimizers(self):
        return (
            torch.optim.Adam(self.generator.parameters(), lr=2e-4),
            torch.optim.Adam(self.discriminator.parameters(), lr=2e-4),
        )


def main(backbone, data):
    trainer = L.Trainer(max_epochs=10, accumulate_grad_batches=8, precision="bf16-mixed")
    model = Classifier(backbone, 1e-3)
    trainer.fit(model, datamodule=data)
    return trainer.predict(model, datamodule=data)
