"""Training of a diffusion model with Accelerate: frozen parts, an EMA, samples drawn between epochs."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator


def log_validation(pipeline, prompts, generator):
    images = []
    for prompt in prompts:
        with torch.autocast("cuda"):
            images.append(pipeline(prompt, num_inference_steps=20, generator=generator).images[0])
    return images


def train(args, unet, vae, text_encoder, scheduler, ema, loader, make_pipeline):
    accelerator = Accelerator(gradient_accumulation_steps=args.accumulation, mixed_precision="fp16")
    vae.requires_grad_(False)
    text_encoder.requires_grad_(False)
    unet.train()
    optimizer = torch.optim.AdamW(unet.parameters(), lr=args.lr)
    lr_scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    unet, optimizer, loader, lr_scheduler = accelerator.prepare(unet, optimizer, loader, lr_scheduler)
    global_step = 0
    for _ in range(args.epochs):
        train_loss = 0.0
        for batch in loader:
            with accelerator.accumulate(unet):
                latents = vae.encode(batch["pixels"]).latent_dist.sample() * vae.config.scaling_factor
                noise = torch.randn_like(latents)
                steps = torch.randint(0, 1000, (len(latents),), device=latents.device)
                noisy = scheduler.add_noise(latents, noise, steps)
                hidden = text_encoder(batch["ids"], return_dict=False)[0]
                prediction = unet(noisy, steps, hidden, return_dict=False)[0]
                loss = F.mse_loss(prediction.float(), noise.float(), reduction="mean")
                gathered = accelerator.gather(loss.repeat(args.batch_size)).mean()
                train_loss += gathered.item() / args.accumulation
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(unet.parameters(), 1.0)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                ema.step(unet.parameters())
                global_step += 1
                accelerator.log({"train_loss": train_loss}, step=global_step)
                train_loss = 0.0
        if accelerator.is_main_process:
            ema.store(unet.parameters())
            ema.copy_to(unet.parameters())
            log_validation(make_pipeline(accelerator.unwrap_model(unet)), args.prompts, None)
            ema.restore(unet.parameters())
            torch.cuda.empty_cache()
